"""The commands and their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from calserve import __version__
from calserve.cli.ranges import ranged
from calserve.cli.refusals import Refusal, told_in_one_sentence

app = typer.Typer(
    name="calserve",
    help="Serve compiled language-model packages on NPU boards behind an OpenAI-compatible API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

prove_app = typer.Typer(
    help="Prove a capability of a board with a package, and write the evidence.", no_args_is_help=True
)
app.add_typer(prove_app, name="prove")

DEFAULT_CACHE = Path("models/sources")

# Bounds on what a person may ask for. No model's context, no board's lanes and no patience reach beyond.
TOKENS_MAX = 1 << 20
LANES_MAX = 64
STREAMS_MAX = 256
STEPS_MAX = 100_000
REPEATS_MAX = 100
TURNS_MAX = 1_000_000_000
SEED_MAX = (1 << 63) - 1
SOAK_HOURS_MAX = 24 * 366


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"calserve {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Commands below; each has --help."""


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="smollm2-135m, or hf:ORG/NAME")],
    cache: Annotated[Path, typer.Option(help="Where sources are kept.")] = DEFAULT_CACHE,
) -> None:
    """Fetch a model's source, checked; prints its path. A second pull fetches nothing."""
    with told_in_one_sentence():
        from calserve.package.pull import pull as pull_model
        from calserve.progress import choose_progress

        typer.echo(pull_model(name, cache, choose_progress()))


def _stream_counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not 1 <= len(counts) <= 16 or not all(1 <= count <= STREAMS_MAX for count in counts):
        raise Refusal(f"--streams takes up to 16 numbers of 1 to {STREAMS_MAX}, such as 1,4,8,16, not {text[:60]!r}.")
    return counts


@app.command()
def serve(
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A package directory; with --board sim, a name for the simulated model."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, ranged(0, 65535, "0 takes a free one.")] = 8000,
    board: Annotated[Optional[str], typer.Option(help="openvino or sim; the package's own by default.")] = None,  # noqa: UP045
    board_profile: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="With --board sim: the kind of board, by name or from a YAML file (docs/board-profile.md)."),
    ] = None,
    fault_plan: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="With --board sim: what goes wrong, and when; a YAML file as in docs/fault-plan.md."),
    ] = None,
    chips: Annotated[
        Optional[int],  # noqa: UP045
        ranged(1, 2, "Chips of the board; each serves a copy where a graph may have one chip."),
    ] = None,
    config: Annotated[Optional[Path], typer.Option(help="A calculet-scheduler/v1 file.")] = None,  # noqa: UP045
    override: Annotated[Optional[list[str]], typer.Option("--set", help="section.key=value")] = None,  # noqa: UP045
    evidence: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="What `calserve conform` or `calserve prove` wrote for this board and package."),
    ] = None,
    require_signature: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            help="A public key; a package that none of those given has signed is not read. "
            "Without it, those of $CALSERVE_REQUIRE_SIGNATURE, which every command that loads a package heeds.",
        ),
    ] = None,
    drain: Annotated[float, ranged(0, 3600, "Seconds open streams get at SIGTERM.")] = 10.0,
    log_json: Annotated[bool, typer.Option(help="Log as JSON.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Serve a package until SIGTERM."""
    with told_in_one_sentence():
        if log_level not in ("debug", "info", "warning", "error"):
            raise Refusal(f"--log-level is debug, info, warning or error, not {log_level!r}.")
        if not host.strip():
            raise Refusal("--host needs an address to listen on, such as 127.0.0.1, or 0.0.0.0 for every one.")
        if model is None and board != "sim":
            raise typer.BadParameter("a package directory is needed, unless --board is sim.", param_hint="--model")
        from calserve.cli.boards import BoardFlags
        from calserve.cli.serve import ServeOptions, run_serve
        from calserve.observe.logs import setup_logs

        setup_logs(log_json, log_level)
        flags = BoardFlags(board, model, board_profile, fault_plan, chips, tuple(require_signature or ()))
        options = ServeOptions(flags, host, port, config, _overrides(override or []), drain, evidence)
        raise typer.Exit(run_serve(options))


def _overrides(pairs: list[str]) -> dict[str, str]:
    wrong = next((pair for pair in pairs if "=" not in pair), None)
    if wrong is not None:
        raise Refusal(f"--set takes section.key=value, not {wrong!r}.")
    return dict(pair.split("=", 1) for pair in pairs)


@app.command()
def bench(
    model: Annotated[Path, typer.Option(help="A package directory.")],
    source: Annotated[Optional[Path], typer.Option(help="Its GGUF, for the peer's IR.")] = None,  # noqa: UP045
    streams: Annotated[str, typer.Option(help="Numbers of concurrent streams.")] = "1,4,8,16",
    repeats: Annotated[int, ranged(1, REPEATS_MAX, "Counted rounds.")] = 5,
    new_tokens: Annotated[int, ranged(2, TOKENS_MAX, "Output of each stream.")] = 128,
    part: Annotated[str, typer.Option(help="all, served, host (what a step costs it) or package (hashing).")] = "all",
    pairs: Annotated[int, ranged(1, 1000, "Of executor and loop, 200 steps each; of hashing.")] = 8,
    json_path: Annotated[Optional[Path], typer.Option("--json", help="Also write every sample here.")] = None,  # noqa: UP045
) -> None:
    """Served against the raw loop, the bare loop and peers, in one interleaved run; then what a step costs the host."""
    with told_in_one_sentence():
        from rich.console import Console

        from calserve.bench.run import BenchOptions, run_bench
        from calserve.cli.outputs import check_file
        from calserve.progress import choose_progress

        check_file(json_path, "--json", model)
        options = BenchOptions(
            model=model,
            source=source,
            streams=_stream_counts(streams),
            repeats=repeats,
            new_tokens=new_tokens,
            json_path=json_path,
            part=part,
            pairs=pairs,
        )
        run_bench(options, choose_progress(), Console())


@prove_app.command("concurrent-jobs")
def prove_concurrent_jobs(
    out: Annotated[Path, typer.Option("-o", "--out", help="The evidence file to write.")],
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A package directory; with --board sim, a name for the simulated model."),
    ] = None,
    board: Annotated[Optional[str], typer.Option(help="openvino or sim; the package's own by default.")] = None,  # noqa: UP045
    board_profile: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="With --board sim: the kind of board, by name or from a YAML file."),
    ] = None,
    soak: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The record of a clean 24 h soak with two jobs in flight."),
    ] = None,
    tokens: Annotated[int, ranged(2, STEPS_MAX, "Tokens of each sequence, compared one by one.")] = 1000,
    steps: Annotated[int, ranged(2, STEPS_MAX, "Timed decode steps of each set in each run.")] = 200,
    repeats: Annotated[int, ranged(1, REPEATS_MAX, "Timed runs.")] = 5,
    rows: Annotated[int, ranged(0, LANES_MAX, "Sequences of a set; 0: half the lanes, or one.")] = 0,
    trace: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Also write the board's trace of two jobs in flight here, for Perfetto."),
    ] = None,
) -> None:
    """Two jobs in flight: right tokens, a trace that overlaps, and a gain. Exit code 3 when it is not proven."""
    with told_in_one_sentence():
        from calserve.cli.prove import ProveFlags, run_prove

        flags = ProveFlags(model, board_profile, soak, out, tokens, steps, repeats, rows, trace)
        raise typer.Exit(run_prove(flags, board))


@app.command("bench-worker", hidden=True)
def bench_worker(
    side: Annotated[str, typer.Argument()],
    model: Annotated[Path, typer.Option()],
    ir: Annotated[Optional[Path], typer.Option()] = None,  # noqa: UP045
    port: Annotated[int, ranged(0, 65535, "Where the server is.")] = 0,
    alias: Annotated[str, typer.Option()] = "",
) -> None:
    """One side of a bench, on standard input and output."""
    with told_in_one_sentence():
        from calserve.bench.worker import WorkerOptions, run_worker
        from calserve.cli.boards import open_board

        run_worker(
            WorkerOptions(side, model, ir, port, alias), lambda package: open_board(package.board, is_shared=True)
        )


@app.command()
def soak(
    context: typer.Context,
    seed: Annotated[int, ranged(0, SEED_MAX, "What the run is drawn from.")] = 1,
    hours: Annotated[
        Optional[float],  # noqa: UP045
        ranged(0, SOAK_HOURS_MAX, "Virtual hours; one if neither is given.", is_above=True),
    ] = None,
    minutes: Annotated[
        Optional[float],  # noqa: UP045
        ranged(0, 60 * SOAK_HOURS_MAX, "Virtual minutes; real ones with --wall.", is_above=True),
    ] = None,
    seeds: Annotated[int, ranged(1, 100_000, "This many runs, from --seed on.")] = 1,
    jobs: Annotated[int, ranged(1, 256, "Processes, for several seeds.")] = 1,
    record: Annotated[Optional[Path], typer.Option(help="Write this run's record here.")] = None,  # noqa: UP045
    records: Annotated[Path, typer.Option(help="Where failing runs leave theirs.")] = Path("soak-records"),
    replay: Annotated[Optional[Path], typer.Option(help="Run a record again.")] = None,  # noqa: UP045
    report: Annotated[Optional[Path], typer.Option(help="Measure recovery by fault kind; .md or .json.")] = None,  # noqa: UP045
    check_every: Annotated[int, ranged(0, TURNS_MAX, "Turns between full scans of core's invariants.")] = 500,
    shrink: Annotated[bool, typer.Option(help="Make a failing run smaller.")] = True,
    min_requests: Annotated[int, ranged(0, TURNS_MAX, "A run with fewer is too weak.")] = 0,
    wall: Annotated[bool, typer.Option("--wall", help="Real time: the real server over HTTP.")] = False,
    out: Annotated[Path, typer.Option(help="--wall: where record, plot and log go.")] = Path("soak-wall"),
    board: Annotated[str, typer.Option(help="--wall: sim or openvino.")] = "sim",
    model: Annotated[Optional[Path], typer.Option(help="--wall: an exact package, for openvino.")] = None,  # noqa: UP045
    rate: Annotated[
        Optional[float],  # noqa: UP045
        ranged(0, 1000, "--wall: requests a second.", is_above=True),
    ] = None,
    board_profile: Annotated[str, typer.Option(help="Every era on this kind of sim board, by name or file.")] = "",
    max_in_flight: Annotated[Optional[int], ranged(1, 2, "With --board-profile: jobs at once.")] = None,  # noqa: UP045
    bank: Annotated[str, typer.Option(help="With --board-profile: auto or fixed; each in turn by default.")] = "",
    fault_plan: Annotated[Optional[Path], typer.Option(help="--wall: faults; docs/fault-plan.md.")] = None,  # noqa: UP045
    chips: Annotated[int, ranged(0, 2, "--wall: chips; 0 for the board's own.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Run the server under faults and judge it: on virtual time, or with --wall on real time."""
    with told_in_one_sentence():
        from calserve.cli.soak import SoakFlags, run_recovery_report, run_replay, run_soak

        _refuse_idle_flags(context, wall=wall, is_replay=replay is not None, is_report=report is not None)
        if wall:
            from calserve.cli.soak import WallFlags, run_wall

            flags = WallFlags(seed, hours, minutes, out, board, model, rate, board_profile, fault_plan, chips, as_json)
            raise typer.Exit(run_wall(flags))
        if replay is not None:
            raise typer.Exit(run_replay(replay, check_every, as_json))
        if report is not None:
            raise typer.Exit(run_recovery_report(report, seed))
        virtual = SoakFlags(
            seed, hours, minutes, seeds, jobs, record, records, check_every, shrink, as_json, min_requests,
            board_profile, max_in_flight or 0, bank,
        )  # fmt: skip
        raise typer.Exit(run_soak(virtual))


_WALL_ONLY = ("out", "board", "model", "rate", "fault_plan", "chips")
_DRAWN_ONLY = (
    "hours",
    "minutes",
    "seeds",
    "jobs",
    "record",
    "records",
    "shrink",
    "min_requests",
    "max_in_flight",
    "bank",
)


def _is_given(context: typer.Context, name: str) -> bool:
    """By the name of its source: typer has brought a click of its own in some versions and not in others."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_idle_flags(context: typer.Context, *, wall: bool, is_replay: bool, is_report: bool) -> None:
    """A flag that would do nothing beside the others is refused, not dropped."""
    if wall:
        idle = (*(set(_DRAWN_ONLY) - {"hours", "minutes"}), "replay", "report", "check_every")
        why = "is for runs on virtual time, not for --wall"
    elif is_replay:
        idle, why = ("seed", "report", "board_profile", *_DRAWN_ONLY, *_WALL_ONLY), "says nothing beside --replay"
    elif is_report:
        idle, why = ("board_profile", "check_every", *_DRAWN_ONLY, *_WALL_ONLY), "says nothing beside --report"
    else:
        idle, why = _WALL_ONLY, "needs --wall"
    given = [name for name in sorted(idle) if _is_given(context, name)]
    if given:
        raise Refusal(f"--{given[0].replace('_', '-')} {why}.")


# At the end, because each of them takes `app` from here.
from calserve.cli import (  # noqa: E402
    capabilities,  # noqa: F401  (registers its command)
    combine,  # noqa: F401  (registers its command)
    conform,  # noqa: F401  (registers its command)
    pack,  # noqa: F401  (registers its command)
    plan,  # noqa: F401  (registers its command)
    run,  # noqa: F401  (registers its command)
    sign,  # noqa: F401  (registers its commands)
    validate,  # noqa: F401  (registers its command)
)
