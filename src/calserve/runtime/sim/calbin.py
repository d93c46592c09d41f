"""One configured package on the device, and what each reset scope destroys.

Owns: `Calbin` (chips, memory, completions not yet delivered) and the table of blast radii. Must not know: host
buffers, time. A calbin lives from `configure` to its release or to the reset that ends it; its jobs may outlive it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from calserve.core.commands import ResetScope
from calserve.runtime.contract import BoardPackage, JobStatus
from calserve.runtime.sim.job import Job
from calserve.runtime.sim.model import ToyHead


@dataclass(slots=True, eq=False)
class Calbin:
    """jobs: submitted, completion not delivered, by ticket number. stray: completions nobody waits for.

    host: which of the device's hosts configured it; a completion never reaches another process.
    reserved: bytes by chip. memory: bytes over all of them, by use.

    One model's share of what is loaded: two models of a combined package are two of these and one current calbin.
    """

    name: str
    generation: int
    package: BoardPackage
    chips: tuple[int, ...]
    lanes: int
    max_in_flight: int
    key: int
    head: ToyHead
    memory: Mapping[str, int]
    reserved: Mapping[int, int]
    is_alive: bool = True
    host: int = 0
    jobs: dict[int, Job] = field(default_factory=dict)
    stray: deque[JobStatus] = field(default_factory=deque)

    @property
    def in_flight(self) -> int:
        return sum(not job.is_retired for job in self.jobs.values())

    @property
    def loaded(self) -> object:
        """What is current on the device: the combined package this is part of, or this alone."""
        return self.package.bundle or self


@dataclass(frozen=True, slots=True)
class ResetEffect:
    """What a reset scope destroys, within its reach.

    reach: "session" (its calbin), "chips" (of the session named, or all), "board".
    ends_sessions: their calbins are gone. clears_kv: lane memory is wiped; otherwise it keeps every byte.
    stops_writes: a late job ends without touching KV or host memory; otherwise its writes land.
    capability: must be C0, or the reset is refused with code 27.
    """

    reach: str
    ends_sessions: bool
    clears_kv: bool
    stops_writes: bool
    capability: str | None = None


RESET_EFFECTS: Mapping[ResetScope, ResetEffect] = MappingProxyType(
    {
        ResetScope.CCU: ResetEffect("chips", ends_sessions=False, clears_kv=False, stops_writes=False),
        ResetScope.SESSION: ResetEffect(
            "session", ends_sessions=True, clears_kv=False, stops_writes=False, capability="session_reset"
        ),
        ResetScope.CONFIGURATION: ResetEffect("board", ends_sessions=True, clears_kv=False, stops_writes=True),
        ResetScope.CHIP: ResetEffect(
            "chips", ends_sessions=True, clears_kv=True, stops_writes=True, capability="chip_reset"
        ),
        ResetScope.BOARD: ResetEffect("board", ends_sessions=True, clears_kv=True, stops_writes=True),
    }
)
