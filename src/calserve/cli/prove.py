"""`calserve prove`: a board and a package into an evidence file and an exit code."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from calserve.accept.evidence import write_evidence
from calserve.accept.pingpong import PingPongOptions, Report, run_pingpong
from calserve.accept.soak_record import load_soak
from calserve.cli.boards import (
    DEFAULT_SIM_MODEL,
    DEFAULT_SIM_PROFILE,
    is_package,
    open_board,
    package_profile,
    sim_sessions,
)
from calserve.cli.outputs import check_file
from calserve.cli.refusals import Refusal
from calserve.cli.trusted import required_keys
from calserve.package.address import chips_of
from calserve.package.reader import one_model, open_sealed
from calserve.progress import choose_progress
from calserve.runtime.contract import Board, BoardPackage
from calserve.whole_file import replace_file

if TYPE_CHECKING:
    from calserve.runtime.sim.figures import SimProfile

# What a host takes between a job's end and its next submit, on a simulated board's virtual clock; measured with the
# embedded board (`make bench`, job end to next submit).
SIM_HOST_NS = 300_000
# The run went well and the capability is not proven: distinct from a refusal, which ran nothing.
EXIT_NOT_PROVEN = 3


@dataclass(frozen=True, slots=True)
class ProveFlags:
    """What the flags said. model: a package directory, or with `profile` the simulated model's name. trace: where the
    board's trace of two jobs in flight is to go."""

    model: str | None
    profile: str | None
    soak: Path | None
    out: Path
    tokens: int
    steps: int
    repeats: int
    rows: int
    trace: Path | None = None


def run_prove(flags: ProveFlags, board_name: str | None) -> int:
    """Exit code: 0 the capability is C0 here, 3 it is not."""
    check_file(flags.out, "-o", flags.model)
    check_file(flags.trace, "--trace", flags.model)
    soak = load_soak(flags.soak) if flags.soak is not None else None
    with ExitStack() as held:
        if board_name == "sim" and not is_package(flags.model):
            board, package, timing = _simulated(flags, held)
        else:
            if flags.model is None:
                raise Refusal("--model takes a package directory; with --board sim it may be left out.")
            package = one_model(open_sealed(Path(flags.model), required_keys()))
            if board_name not in (None, package.board):
                raise Refusal(f"{flags.model} is a package for board {package.board}, not {board_name}.")
            if package.board == "sim":
                board, timing = _on_virtual_time(package_profile(package, flags.profile), chips_of(package.chip_mask))
            else:
                board, timing = open_board(package.board), PingPongOptions(time.monotonic_ns)
        _check_rows(flags.rows, package.max_lanes)
        options = PingPongOptions(
            timing.clock,
            timing.spend,
            chips=timing.chips,
            tokens=flags.tokens,
            steps=flags.steps,
            repeats=flags.repeats,
            rows=flags.rows,
            soak=soak,
        )
        report = run_pingpong(held.enter_context(closing(board)), package, options, choose_progress())
    write_evidence(report.evidence, flags.out)
    console = Console()
    print_report(report, console)
    if flags.trace is not None:
        _write_trace(report, flags.trace, console)
    return 0 if report.evidence.state == "C0" else EXIT_NOT_PROVEN


def _check_rows(rows: int, lanes: int) -> None:
    """More than a session has lanes for says nothing about the board."""
    if rows > max(1, lanes // 2):
        raise Refusal(
            f"--rows is at most {max(1, lanes // 2)} with this package: two sets of {rows} sequences need "
            f"{2 * rows} lanes, and it has {lanes}."
        )


def _simulated(flags: ProveFlags, held: ExitStack) -> tuple[Board, BoardPackage, PingPongOptions]:
    """The package that `calserve serve --board sim` serves, on virtual time."""
    from calserve.runtime.sim.profile import load_profile
    from calserve.runtime.sim.serving import served_sim_package

    profile = load_profile(flags.profile or DEFAULT_SIM_PROFILE)
    root = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="calserve-prove-")))
    package = served_sim_package(profile, flags.model or DEFAULT_SIM_MODEL, root)
    sessions = sim_sessions(profile.name, profile.chips, profile.session_chips, None)
    board, timing = _on_virtual_time(profile, next(iter(sessions.values())))
    return board, package, timing


def _on_virtual_time(profile: SimProfile, chips: tuple[int, ...]) -> tuple[Board, PingPongOptions]:
    from calserve.runtime.sim import SimBoard, VirtualClock

    clock = VirtualClock()
    timing = PingPongOptions(clock.now_ns, lambda: clock.spend(SIM_HOST_NS), chips=chips)
    return SimBoard(profile, clock=clock), timing


def _write_trace(report: Report, path: Path, console: Console) -> None:
    """Chrome/Perfetto JSON of what overlap was measured on; nothing where the run did not come so far."""
    from calserve.runtime.sim.chrome_trace import chrome_trace

    if not report.spans:
        console.print("no trace: no run with two jobs in flight came to its end", highlight=False, markup=False)
        return
    replace_file(path, chrome_trace(report.spans))
    console.print(f"trace: {path}", highlight=False, markup=False, soft_wrap=True)


def print_report(report: Report, console: Console) -> None:
    evidence = report.evidence
    where = f"{'simulated ' if evidence.simulated else ''}board {evidence.board}"
    table = Table(title=f"{evidence.capability} on {where}, package {evidence.package_hash[:12]}: {evidence.state}")
    for name in ("check", "passed", "seen", "bound"):
        table.add_column(name)
    for check in evidence.checks:
        seen = ", ".join(f"{name} {value}" for name, value in check.figures.items() if value != "")
        table.add_row(check.name, "yes" if check.passed else "no", seen, check.bound)
    console.print(table)
    if report.stopped:
        console.print(f"stopped: {report.stopped}", highlight=False, markup=False)
    if evidence.missing:
        console.print(f"missing: {', '.join(evidence.missing)}", highlight=False, markup=False)
