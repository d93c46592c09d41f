"""Which boards there are. The one place that turns a board's name into a board, and a board into what metrics show."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from calserve.cli.refusals import Refusal
from calserve.observe.board import BoardReading, DeviceReading
from calserve.package.reader import open_package
from calserve.runtime.contract import Board, BoardPackage, LoadOptions, Telemetry

BOARDS = ("openvino", "sim")
DEFAULT_SIM_PROFILE = "assumed-lanes"
DEFAULT_SIM_MODEL = "sim-model"
# The machine-wide lock a served simulated board takes, as a real one would.
SIM_LOCK = "sim"


@dataclass(frozen=True, slots=True)
class BoardFlags:
    """What the flags said of board and package. None: not said.

    board: the package's own when None. model: a package directory; with the simulated board, the simulated model's
    name. profile, fault_plan: of the simulated board only.
    """

    board: str | None = None
    model: str | None = None
    profile: str | None = None
    fault_plan: Path | None = None
    chips: int | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A package and the board for it, not opened yet. sessions: the chips of each, by name. about: for people."""

    package: BoardPackage
    sessions: dict[str, tuple[int, ...]]
    open: Callable[[], Board]
    about: str

    def load_options(self, max_in_flight: int) -> dict[str, LoadOptions]:
        """A copy of the package for every session."""
        package = self.package
        return {
            name: LoadOptions(
                chips=chips,
                numerics=package.numerics,
                lanes=package.max_lanes,
                kv_tokens=package.max_lanes * package.context,
                max_in_flight=max_in_flight,
            )
            for name, chips in self.sessions.items()
        }


@contextmanager
def chosen_board(flags: BoardFlags) -> Iterator[Chosen]:
    """The package checked and its board chosen; what was written for it is removed at the end.

    Raises Refusal, PackageError, and what the simulated board says of a bad profile or fault plan.
    """
    if flags.board is not None and flags.board not in BOARDS:
        raise Refusal(f"There is no board {flags.board!r} to serve on; there are {' and '.join(BOARDS)}.")
    if flags.board == "sim":
        with tempfile.TemporaryDirectory(prefix="calserve-sim-") as root:
            yield _simulated(flags, Path(root))
        return
    for flag, value in (("--board-profile", flags.profile), ("--fault-plan", flags.fault_plan)):
        if value is not None:
            raise Refusal(f"{flag} is for the simulated board; use it with --board sim.")
    if flags.model is None:
        raise Refusal("--model needs a package directory.")
    package = open_package(Path(flags.model))
    if flags.board is not None and flags.board != package.board:
        raise Refusal(f"{flags.model} is a package for board {package.board}, not {flags.board}.")
    chips = flags.chips or 1
    sessions: dict[str, tuple[int, ...]] = {f"chip{chip}": (chip,) for chip in range(chips)}
    yield Chosen(package, sessions, lambda: open_board(package.board, chips), f"board {package.board}")


def open_board(name: str, chips: int = 1, *, is_shared: bool = False) -> Board:
    """Open a real board exclusively; `is_shared` only for benches, which load several sides one beside another."""
    if name == "openvino":
        from calserve.runtime.openvino import OpenVinoBoard

        if is_shared:
            return OpenVinoBoard.open(chips, lock_directory=Path(tempfile.mkdtemp(prefix="calserve-bench-")))
        try:
            return OpenVinoBoard.open(chips)
        except ValueError as error:
            raise Refusal(str(error)) from None
    raise Refusal(f"There is no board {name!r} for a package; there is openvino.")


def _simulated(flags: BoardFlags, root: Path) -> Chosen:
    from calserve.runtime.sim import SimBoard, WallClock
    from calserve.runtime.sim.faults import load_fault_plan
    from calserve.runtime.sim.profile import load_profile
    from calserve.runtime.sim.serving import served_sim_package

    profile = load_profile(flags.profile or DEFAULT_SIM_PROFILE)
    plan = load_fault_plan(flags.fault_plan) if flags.fault_plan is not None else None
    package = served_sim_package(profile, flags.model or DEFAULT_SIM_MODEL, root)
    sessions = sim_sessions(profile.name, profile.chips, profile.session_chips, flags.chips)
    if len(sessions) > profile.calbins_per_board:
        raise Refusal(
            f"--chips {flags.chips} needs {len(sessions)} packages at once on the board; "
            f"board profile {profile.name} holds {profile.calbins_per_board}."
        )
    return Chosen(
        package,
        sessions,
        lambda: SimBoard(profile, clock=WallClock(), faults=plan, lock_name=SIM_LOCK),
        f"board sim (simulated, profile {profile.name})",
    )


def sim_sessions(name: str, on_board: int, spans: tuple[int, ...], asked: int | None) -> dict[str, tuple[int, ...]]:
    """The sessions of a simulated board: one a chip where a graph may have one chip, else one over its whole span.

    spans: how many chips a compiled graph of profile `name` may have. asked: --chips.
    """
    if asked is not None and asked > on_board:
        raise Refusal(f"--chips {asked} is more than board profile {name} has: {on_board}.")
    if 1 in spans:
        return {f"chip{chip}": (chip,) for chip in range(asked or 1)}
    span = spans[0]
    if asked is not None and asked != span:
        raise Refusal(f"--chips {asked} cannot be: every graph of board profile {name} spans {span} chips.")
    return {"chips": tuple(range(span))}


def read_board(board: Board, buffers: tuple[int, int]) -> BoardReading:
    """What the board says now; none of these calls waits for the device. buffers: leased and quarantined."""
    facts, counters = board.describe(), board.counters()
    leased, quarantined = buffers
    return BoardReading(
        is_simulated=facts.simulated,
        is_healthy=board.health().ok,
        devices=tuple(_device(board.telemetry(chip.chip)) for chip in facts.chips),
        jobs_pending=counters.pending,
        jobs_left=counters.left,
        jobs_finished=counters.finished,
        buffers_leased=leased,
        buffers_quarantined=quarantined,
    )


def _device(seen: Telemetry) -> DeviceReading:
    return DeviceReading(
        seen.memory_used, seen.memory_total, seen.temperature_c, seen.power_w, seen.frequency_hz, seen.resets
    )
