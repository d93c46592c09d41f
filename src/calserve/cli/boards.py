"""Which boards there are. The one place that turns a board's name into a board, and a board into what metrics show."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calserve.cli.refusals import Refusal
from calserve.cli.trusted import required_keys
from calserve.observe.board import BoardReading, DeviceReading
from calserve.package.address import chips_of
from calserve.package.manifest import MANIFEST
from calserve.package.reader import one_model, open_sealed
from calserve.runtime.contract import Board, BoardPackage, LoadOptions, Telemetry

if TYPE_CHECKING:
    from calserve.runtime.sim.figures import SimProfile

BOARDS = ("openvino", "sim")
DEFAULT_SIM_PROFILE = "assumed-lanes"
DEFAULT_SIM_MODEL = "sim-model"
# The machine-wide lock a served simulated board takes, as a real one would.
SIM_LOCK = "sim"


@dataclass(frozen=True, slots=True)
class BoardFlags:
    """What the flags said of board and package. None: not said.

    board: the package's own when None. model: a package directory; with the simulated board also the name of a model
    that is made up for it. profile, fault_plan: of the simulated board only. keys: public keys one of
    which must have signed the package; empty: no signature is asked for.
    """

    board: str | None = None
    model: str | None = None
    profile: str | None = None
    fault_plan: Path | None = None
    chips: int | None = None
    keys: tuple[Path, ...] = ()


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
    if flags.board == "sim" and not is_package(flags.model):
        if flags.keys:
            raise Refusal("--require-signature is for a package directory, and --model names none.")
        with tempfile.TemporaryDirectory(prefix="calserve-sim-") as root:
            yield _simulated(flags, Path(root))
        return
    if flags.board == "openvino" or not is_package(flags.model):
        _refuse_sim_flags(flags)
    if flags.model is None:
        raise Refusal("--model needs a package directory.")
    package = one_model(open_sealed(Path(flags.model), required_keys(flags.keys)))
    if flags.board is not None and flags.board != package.board:
        raise Refusal(f"{flags.model} is a package for board {package.board}, not {flags.board}.")
    if package.board == "sim":
        yield _simulated_package(flags, package)
        return
    _refuse_sim_flags(flags)
    chips = flags.chips or 1
    sessions: dict[str, tuple[int, ...]] = {f"chip{chip}": (chip,) for chip in range(chips)}
    yield Chosen(package, sessions, lambda: open_board(package.board, chips), f"board {package.board}")


def is_package(model: str | None) -> bool:
    """Whether `--model` names a package directory; with the simulated board it may be a model's name."""
    return model is not None and (Path(model) / MANIFEST).is_file()


def _refuse_sim_flags(flags: BoardFlags) -> None:
    for flag, value in (("--board-profile", flags.profile), ("--fault-plan", flags.fault_plan)):
        if value is not None:
            raise Refusal(f"{flag} is for the simulated board; use it with --board sim.")


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
    """A simulated board with a model that is made up for it."""
    from calserve.runtime.sim.profile import load_profile
    from calserve.runtime.sim.serving import served_sim_package

    profile = load_profile(flags.profile or DEFAULT_SIM_PROFILE)
    package = served_sim_package(profile, flags.model or DEFAULT_SIM_MODEL, root)
    sessions = sim_sessions(profile.name, profile.chips, profile.session_chips, flags.chips)
    return _on_simulated_board(flags, profile, package, sessions)


def _simulated_package(flags: BoardFlags, package: BoardPackage) -> Chosen:
    """A package on disk that was compiled for a simulated board."""
    profile = package_profile(package, flags.profile)
    spans = package.chip_mask.bit_count()
    if spans not in profile.session_chips:
        raise Refusal(
            f"{package.root} is compiled for {spans} chips; a graph on board profile {profile.name} spans "
            f"{' or '.join(map(str, profile.session_chips))}."
        )
    sessions = sim_sessions(profile.name, profile.chips, (spans,), flags.chips)
    if package.pinned:
        sessions = {next(iter(sessions)): chips_of(package.chip_mask)}
    return _on_simulated_board(flags, profile, package, sessions)


def _on_simulated_board(
    flags: BoardFlags, profile: SimProfile, package: BoardPackage, sessions: dict[str, tuple[int, ...]]
) -> Chosen:
    from calserve.runtime.sim import SimBoard, WallClock
    from calserve.runtime.sim.faults import load_fault_plan

    plan = load_fault_plan(flags.fault_plan) if flags.fault_plan is not None else None
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


def package_profile(package: BoardPackage, asked: str | None) -> SimProfile:
    """The board profile that was asked for, by name or file, else the shipped one the package was compiled for.

    A package names no file: whoever made it would have this machine open what they like. Raises ProfileError.
    """
    from calserve.runtime.sim.figures import ProfileError
    from calserve.runtime.sim.package import PROFILE_SETTING
    from calserve.runtime.sim.profile import PROFILES, load_profile

    if asked:
        return load_profile(asked)
    named = package.settings.get(PROFILE_SETTING, DEFAULT_SIM_PROFILE)
    shipped = PROFILES.get(named)
    if shipped is None:
        raise ProfileError(
            f"Model {package.model} is compiled for the board profile {named[:80]!a}, which does not ship here; "
            "--board-profile takes its file."
        )
    return shipped


def open_runner_board(models: Sequence[BoardPackage], profile: str | None) -> tuple[Board, Callable[[], int]]:
    """The board that all these models of one package are for, with as many chips as they name, and its clock in ns.

    A simulated board is on virtual time.
    """
    first = models[0]
    if first.board == "sim":
        from calserve.runtime.sim import SimBoard, VirtualClock

        clock = VirtualClock()
        return SimBoard(package_profile(first, profile), clock=clock), clock.now_ns
    if profile is not None:
        raise Refusal(f"--board-profile is for the simulated board; {first.root} is for board {first.board}.")
    chips = max(model.chip_mask.bit_length() for model in models)
    return open_board(first.board, chips), time.monotonic_ns


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
