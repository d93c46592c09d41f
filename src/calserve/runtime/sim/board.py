"""The simulated board behind the contract: opening, configuring, resetting, and what it says of itself.

Owns: the exclusive hold on a `SimDevice` and the checks of `configure`. Must not know: jobs in detail,
requests. Life: opened on a new device or on one an earlier host left behind, closed once.
"""

from __future__ import annotations

from types import MappingProxyType

from calserve.core.commands import ResetScope
from calserve.runtime.contract import (
    BoardFacts,
    BoardPackage,
    ChipFacts,
    Code,
    Counters,
    Evidence,
    Health,
    LoadOptions,
    Session,
    Telemetry,
    TraceSpan,
)
from calserve.runtime.errors import CalCode
from calserve.runtime.lock import BoardBusy, BoardLock
from calserve.runtime.sim.clock import Clock
from calserve.runtime.sim.device import SimDevice
from calserve.runtime.sim.faults import FaultPlan, FaultPoint
from calserve.runtime.sim.loading import check_load, make_calbin
from calserve.runtime.sim.profile import ASSUMED_LANES, SimProfile
from calserve.runtime.sim.session import SimSession

PROOF = "simulated: the board contract suite in tests/board"


class SimBoard:
    """`Board` of a simulated device.

    profile, clock, faults: of a new device; without a clock it runs on virtual time that blocking calls move.
    device: an existing one instead, with its memory as the last host left it.
    lock_name: also take the machine-wide lock of that name, as a served board does.
    Raises BoardBusy if the device or the lock is held.
    """

    def __init__(
        self,
        profile: SimProfile = ASSUMED_LANES,
        *,
        clock: Clock | None = None,
        faults: FaultPlan | None = None,
        device: SimDevice | None = None,
        lock_name: str | None = None,
    ) -> None:
        if device is not None and (clock is not None or faults is not None or profile is not ASSUMED_LANES):
            raise ValueError("an existing device brings its own profile, clock and faults")
        self.device = device if device is not None else SimDevice(profile, clock, faults)
        self.profile = self.device.profile
        self._figures_sha256 = self.profile.sha256()
        self._lock = BoardLock.acquire(lock_name) if lock_name is not None else None
        self._is_open = self.device.open(self)
        if not self._is_open:
            if self._lock is not None:
                self._lock.release()
            raise BoardBusy("Board 'sim' is already open: this simulated device has an owner; close that first.")

    def describe(self) -> BoardFacts:
        profile = self.profile
        chips = (ChipFacts(i, profile.cores_per_chip, profile.dram_bytes) for i in range(profile.chips))
        proven = (name for name, state in profile.capabilities.items() if state is Evidence.C0)
        return BoardFacts(
            name="sim",
            simulated=True,
            chips=tuple(chips),
            capabilities=profile.capabilities,
            versions=MappingProxyType({**profile.versions, "profile": profile.name}),
            proven_by=MappingProxyType(dict.fromkeys(proven, PROOF)),
            figures_sha256=self._figures_sha256,
        )

    def health(self) -> Health:
        return Health(False, "the device is lost") if self.device.engine.is_lost else Health(True)

    def telemetry(self, chip: int) -> Telemetry:
        """Declared values of the profile; all None for a lost device. An unknown chip is a KeyError."""
        profile, device = self.profile, self.device
        if not 0 <= chip < profile.chips:
            raise KeyError(chip)
        if device.engine.is_lost:
            return Telemetry()
        with device.lock:
            return Telemetry(
                memory_used=device.memory_used(chip),
                memory_total=profile.dram_bytes,
                temperature_c=profile.temperature_c,
                power_w=profile.power_w,
                frequency_hz=profile.frequency_hz,
                throttled=None if profile.frequency_hz is None else False,
                resets=device.resets[chip],
            )

    def counters(self) -> Counters:
        """pending: not started. left: not retired, pending ones included. finished: since the device was made."""
        with self.device.lock:
            engine = self.device.engine
            pending = len(engine.queue)
            left = pending + len(engine.running)
            if self.device.plan.visit(FaultPoint.COUNTERS_WRONG):
                left += 1
            return Counters(pending, engine.finished, left)

    def trace(self, since_ns: int) -> tuple[TraceSpan, ...]:
        with self.device.lock:
            return self.device.engine.timeline.spans(since_ns)

    def configure(
        self, package: BoardPackage, options: LoadOptions, name: str, generation: int
    ) -> tuple[Code, Session | None]:
        """Codes: 19 not a package for this board, 5 options it cannot have, 27 beyond what is proven, 7, 2, 1, 18."""
        code = check_load(self.profile, package, options)
        if code != CalCode.SUCCESS:
            return code, None
        if fault := self.device.plan.visit(FaultPoint.CONFIGURE_FAILS):
            return fault.value or CalCode.INVALID_CONFIG, None
        calbin = make_calbin(self.profile, package, options, name, generation)
        if 0 < options.dram_quota < sum(calbin.memory.values()):
            return CalCode.MEMORY_ALLOCATION, None
        is_loaded = self.device.is_loaded(calbin)
        code = self.device.configure(calbin)
        if code != CalCode.SUCCESS:
            return code, None
        if not is_loaded:  # a combined package is configured once, with all its models
            self.device.clock.spend(self.profile.timing.configure_ns)
        return code, SimSession(self.device, calbin)

    def reset(self, scope: ResetScope, session: str | None) -> Code:
        """Codes: 25 it failed and changed nothing; otherwise as `SimDevice.reset`."""
        if fault := self.device.plan.visit(FaultPoint.RESET_FAILS):
            return fault.value or CalCode.SOFT_RESET_FAILED
        self.device.clock.spend(self.profile.timing.reset_ns)
        return self.device.reset(scope, session)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.device.host_ended()
            if self._lock is not None:
                self._lock.release()
