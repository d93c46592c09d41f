"""`calserve pack`: a package from a model's source, from a record, or for the simulated board from a geometry alone.

Owns its flags and which of them go together. Must not know how a package is made.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Optional, cast

import typer

from calserve.cli.app import DEFAULT_CACHE, TOKENS_MAX, app
from calserve.cli.outputs import check_directory
from calserve.cli.ranges import ranged
from calserve.cli.refusals import Refusal, told_in_one_sentence
from calserve.stopping import stopping_on

if TYPE_CHECKING:
    from calserve.package.budget import WeightFormat
    from calserve.package.pack import PackReport, ReplayReport
    from calserve.package.pack.sim_target import SimPackReport

DIFFERS = 3  # exit code
TARGETS = ("openvino", "sim")
# What each way of packing would not look at.
_NOT_WITH_REPLAY = (
    "profiles", "context", "weights", "numerics", "reference", "alias", "target", "geometry", "board_profile", "chips",
)  # fmt: skip
_NOT_WITH_SIM = ("source", "numerics", "reference", "cache", "replay", "other_tools")
_ONLY_WITH_SIM = ("geometry", "board_profile", "chips")
_ONLY_WITH_REPLAY = ("other_tools",)


class _Flags(NamedTuple):
    """As they were given; which of them count is for the way of packing to say."""

    out: Path
    profiles: str
    context: int
    weights: str
    numerics: str
    reference: str
    alias: str
    cache: Path
    geometry: str
    board_profile: str
    chips: int
    force: bool


@app.command()
def pack(  # noqa: PLR0913, PLR0917  (a command's flags are its parameters)
    context_: typer.Context,
    source: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="A GGUF file, a Hugging Face or OpenVINO IR directory, or hf:ORG/NAME."),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The package directory to make.")] = ...,  # type: ignore[assignment]
    profiles: Annotated[str, typer.Option(help="Lane counts worth choosing, rising.")] = "1,4,8,16",
    context: Annotated[int, ranged(1, TOKENS_MAX, "Tokens of one sequence, prompt and output.")] = 2048,
    weights: Annotated[str, typer.Option(help="int8, int4, fp16 or given (as the source has them)")] = "int8",
    numerics: Annotated[str, typer.Option(help="fast or exact")] = "fast",
    reference: Annotated[
        str, typer.Option(help="auto, or transformers: hold a GGUF against it too, where the extra `pack` is.")
    ] = "auto",
    alias: Annotated[str, typer.Option(help="Name to serve under; the source's by default.")] = "",
    cache: Annotated[Path, typer.Option(help="Where a hub's models are kept.")] = DEFAULT_CACHE,
    target: Annotated[str, typer.Option(help="The kind of board: openvino, or sim (no weights).")] = "openvino",
    geometry: Annotated[str, typer.Option(help="With --target sim: the model's figures, by name or file.")] = "",
    board_profile: Annotated[str, typer.Option(help="With --target sim: the kind of board, by name or file.")] = "",
    chips: Annotated[int, ranged(0, 32, "With --target sim: chips a graph spans; 0 takes the geometry's.")] = 0,
    replay: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Build the package of this build-provenance.json again, and compare it."),
    ] = None,
    other_tools: Annotated[
        bool, typer.Option("--other-tools", help="With --replay: go on where tools have other versions.")
    ] = False,
    force: Annotated[bool, typer.Option(help="Replace an existing package.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Make a package, and say how well it agrees with its source. Exit code 3: a replay came out differently."""
    with told_in_one_sentence(), stopping_on():
        check_directory(out, "-o", source)
        given = {name for name in context_.params if _is_given(context_, name)}
        flags = _Flags(
            out, profiles, context, weights, numerics, reference, alias, cache, geometry, board_profile, chips, force
        )  # fmt: skip
        _refuse_idle(given, target, is_replay=replay is not None)
        if target == "sim":
            _say_packed(_pack_sim(flags, given), as_json)
        elif replay is not None:
            raise typer.Exit(_say_replayed(_replay(flags, replay, source or "", other_tools), as_json))
        elif source is None:
            raise Refusal("pack needs a source: a GGUF file, a directory, or hf:ORG/NAME.")
        else:
            _say_packed(_pack(flags, source), as_json)


def _is_given(context: typer.Context, name: str) -> bool:
    """By the name of its source: typer has brought a click of its own in some versions and not in others."""
    found = context.get_parameter_source(name)
    return found is not None and found.name == "COMMANDLINE"


def _refuse_idle(given: set[str], target: str, *, is_replay: bool) -> None:
    """A flag that would do nothing beside the others is refused, not dropped."""
    if target not in TARGETS:
        raise Refusal(f"--target is {' or '.join(TARGETS)}, not {target[:60]!r}.")
    idle: tuple[str, ...]
    if target == "sim":
        idle, why = _NOT_WITH_SIM, "says nothing beside --target sim, which packs a geometry and no weights"
    elif is_replay:
        idle, why = _NOT_WITH_REPLAY, "says nothing beside --replay: the record decides it"
    elif given & set(_ONLY_WITH_SIM):
        idle, why = _ONLY_WITH_SIM, "is for --target sim"
    else:
        idle, why = _ONLY_WITH_REPLAY, "is for --replay"
    for name in idle:
        if name in given:
            written = "a source" if name == "source" else f"--{name.replace('_', '-')}"
            raise Refusal(f"{written} {why}.")


def _pack(flags: _Flags, source: str) -> PackReport:
    from calserve.package.pack import PackOptions
    from calserve.package.pack import pack as pack_model
    from calserve.progress import choose_progress

    options = PackOptions(
        profiles=lane_counts(flags.profiles),
        context=flags.context,
        weights=flags.weights,
        numerics=flags.numerics,
        reference=flags.reference,
        alias=flags.alias,
        force=flags.force,
        cache=flags.cache,
    )
    return pack_model(source, flags.out, options, choose_progress())


def _replay(flags: _Flags, record: Path, source: str, is_other_tools: bool) -> ReplayReport:
    from calserve.package.pack import PackOptions, replay
    from calserve.progress import choose_progress

    options = PackOptions(force=flags.force, cache=flags.cache)
    progress = choose_progress()
    return replay(record, source, flags.out, options, is_other_tools, progress)


def _pack_sim(flags: _Flags, given: set[str]) -> SimPackReport:
    """What was not given is the geometry's."""
    from calserve.package.geometry import load_geometry
    from calserve.package.pack.sim_target import SimOptions, pack_sim
    from calserve.progress import choose_progress

    if not flags.geometry:
        raise Refusal("--target sim needs --geometry: a name or a file that says what the model is.")
    weights = flags.weights
    if weights not in ("int8", "int4", "fp16"):
        raise Refusal(f"with --target sim --weights gives only their size: int8, int4 or fp16, not {weights[:60]!r}.")
    options = SimOptions(
        board_profile=flags.board_profile,
        chips=flags.chips,
        profiles=lane_counts(flags.profiles) if "profiles" in given else (),
        context=flags.context if "context" in given else 0,
        weights=cast("WeightFormat", weights),
        alias=flags.alias,
        force=flags.force,
    )
    return pack_sim(load_geometry(flags.geometry), flags.out, options, choose_progress())


def _say_packed(report: PackReport | SimPackReport, as_json: bool) -> None:
    text = f"{report.target}: {report.total_bytes / 1e6:.0f} MB in {report.seconds:.1f} s, {report.hash[:12]}"
    typer.echo(json.dumps(asdict(report), default=str, indent=1) if as_json else text)


def _say_replayed(report: ReplayReport, as_json: bool) -> int:
    if as_json:
        typer.echo(json.dumps(asdict(report), default=str, indent=1))
    elif not report.differing:
        typer.echo(f"{report.pack.target}: every file is as recorded, {report.pack.hash[:12]}")
    else:
        tools = f"; tools differ: {'; '.join(report.tools)}" if report.tools else ""
        typer.echo(f"{report.pack.target}: came out differently: {', '.join(report.differing)}{tools}")
    return DIFFERS if report.differing else 0


def lane_counts(text: str) -> tuple[int, ...]:
    """Which of them can be is for the package to say."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise Refusal(f"--profiles takes lane counts such as 1,4,8,16, not {text[:60]!r}.") from None
