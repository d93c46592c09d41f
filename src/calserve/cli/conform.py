"""`calserve conform`: a board and a package into a table, an evidence file and an exit code."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from calserve.cli.app import LANES_MAX, REPEATS_MAX, STEPS_MAX, app
from calserve.cli.boards import BoardFlags, chosen_board, package_profile
from calserve.cli.outputs import check_file
from calserve.cli.ranges import ranged
from calserve.cli.refusals import Refusal, told_in_one_sentence

if TYPE_CHECKING:
    from calserve.accept.conform.record import Conformance, MadeBy
    from calserve.accept.pingpong import PingPongOptions
    from calserve.runtime.contract import Board, BoardPackage

# The run went to its end and a claim does not hold: distinct from a refusal, which ran nothing.
EXIT_NOT_PROVEN = 3


@app.command()
def conform(  # noqa: PLR0913, PLR0917  (a command's flags are its parameters)
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A package directory; with --board sim, also a name for a simulated model."),
    ] = None,
    board: Annotated[Optional[str], typer.Option(help="openvino or sim; the package's own by default.")] = None,  # noqa: UP045
    board_profile: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="With --board sim: the kind of board, by name or from a YAML file."),
    ] = None,
    board_factory: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A board of your own: FILE.py:function. The file is run."),
    ] = None,
    chips: Annotated[Optional[int], ranged(1, 2, "Chips to open the board with.")] = None,  # noqa: UP045
    out: Annotated[Optional[Path], typer.Option("-o", "--out", help="The evidence file to write.")] = None,  # noqa: UP045
    soak: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The record of a clean 24 h soak with two jobs in flight."),
    ] = None,
    tokens: Annotated[int, ranged(2, STEPS_MAX, "Two jobs: tokens of each sequence, compared one by one.")] = 1000,
    steps: Annotated[int, ranged(2, STEPS_MAX, "Two jobs: timed steps of each set in each run.")] = 200,
    repeats: Annotated[int, ranged(1, REPEATS_MAX, "Two jobs: timed runs.")] = 5,
    rows: Annotated[int, ranged(0, LANES_MAX, "Two jobs: sequences of a set; 0: half the lanes, or one.")] = 0,
    board_reset: Annotated[bool, typer.Option("--board-reset", help="Also reset the whole board.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the evidence as JSON.")] = False,
) -> None:
    """Prove every capability by running it. Exit code 3 when what is claimed, or due of every board, does not hold."""
    with told_in_one_sentence():
        from calserve.accept.conform.proof import ConformOptions
        from calserve.accept.conform.record import conformance_json, write_conformance
        from calserve.accept.conform.run import run_conformance
        from calserve.accept.soak_record import load_soak
        from calserve.progress import choose_progress

        check_file(out, "--out", model)
        proof = load_soak(soak) if soak is not None else None
        with ExitStack() as held:
            opened, package, jobs = _opened(held, BoardFlags(board, model, board_profile, None, chips), board_factory)
            jobs = replace(jobs, tokens=tokens, steps=steps, repeats=repeats, rows=rows, soak=proof)
            options = ConformOptions(jobs, allow_board_reset=board_reset)
            record = run_conformance(opened, package, options, _made_now(), choose_progress())
        if out is not None:
            write_conformance(record, out)
        if as_json:
            typer.echo(conformance_json(record))
        else:
            _print(record, out)
        raise typer.Exit(EXIT_NOT_PROVEN if record.broken or record.unproven_claims else 0)


def _opened(held: ExitStack, flags: BoardFlags, factory: str | None) -> tuple[Board, BoardPackage, PingPongOptions]:
    """Open for as long as `held` is. A simulated board is on virtual time, with a host's own time added to a step."""
    from calserve.accept.pingpong import PingPongOptions

    if factory is not None:
        from calserve.cli.factory import make_board

        if (flags.board, flags.profile, flags.chips) != (None, None, None):
            raise Refusal(
                "--board-factory brings its own board; --board, --board-profile and --chips say nothing then."
            )
        board, package = make_board(factory, flags.model)
        held.callback(board.close)
        return board, package, PingPongOptions(time.monotonic_ns, chips=(board.describe().chips[0].chip,))
    chosen = held.enter_context(chosen_board(flags))
    chips = next(iter(chosen.sessions.values()))
    if chosen.package.board != "sim":
        return (
            held.enter_context(closing(chosen.open())),
            chosen.package,
            PingPongOptions(time.monotonic_ns, chips=chips),
        )
    from calserve.cli.prove import SIM_HOST_NS
    from calserve.runtime.sim import SimBoard, VirtualClock

    clock = VirtualClock()
    simulated = SimBoard(package_profile(chosen.package, flags.profile), clock=clock)
    timing = PingPongOptions(clock.now_ns, lambda: clock.spend(SIM_HOST_NS), chips=chips)
    return held.enter_context(closing(simulated)), chosen.package, timing


def _made_now() -> MadeBy:
    from calserve.accept.conform.record import MadeBy
    from calserve.simulate.record import made_here

    here = made_here()
    return MadeBy(here.version, here.commit, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def _print(record: Conformance, out: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from calserve.accept.conform.proofs import BY_ID

    console = Console()
    where = f"{'simulated ' if record.simulated else ''}board {record.board}"
    table = Table(title=f"{where}, package {record.package_hash[:12]} ({record.model})")
    for name in ("proof", "capability", "verdict", "seen"):
        table.add_column(name)
    for proof in record.proofs:
        capability = BY_ID[proof.id].capability or "every board"
        table.add_row(proof.id, capability, proof.verdict.replace("_", " "), proof.sentence)
    console.print(table)
    states = Table(title="capabilities")
    for name in ("capability", "declared", "state"):
        states.add_column(name)
    for each in record.capabilities:
        is_simulated = record.simulated and each.state == "C0"
        states.add_row(each.name, each.declared, each.state + (" (simulated)" if is_simulated else ""))
    console.print(states)
    lines = ["What the runtime's contract must answer (seed 004, section 7.1):"]
    lines += [f"  {answer.row}: {answer.question} {answer.answer}" for answer in record.answers]
    lines += [f"{proof.id}: {proof.sentence}" for proof in record.broken]
    if claims := record.unproven_claims:
        lines.append(f"claimed, and not proven here: {', '.join(each.name for each in claims)}")
    if out is not None:
        lines.append(f"evidence: {out}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
