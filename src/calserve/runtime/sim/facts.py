"""What the simulated device says it did, fact by fact: the only account of it that an oracle trusts.

Owns: the printed form of a fact. Must not know: who listens. A listener is called under the device's lock, at the
fact's own time and in the order things happened; it must be quick and must not call the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from calserve.core.job import JobSpec


class FactKind(Enum):
    """Fields of a `DeviceFact` beside `at_ns` that are set, by kind."""

    CONFIGURED = "configured"  # session, generation, chips
    RELEASED = "released"  # session, generation, chips
    HELD = "held"  # session, generation: a submit named host memory that a job on the device still holds
    SUBMITTED = "submitted"  # ticket, session, generation, chips, spec
    INPUTS_READ = "inputs_read"  # ticket, chips, rows: what the DMA found in host memory
    KV_WRITTEN = "kv_written"  # ticket, chips, rows; also when a CCU exception spoils them (detail "spoiled")
    OUTPUT_WRITTEN = "output_written"  # ticket: host memory of its output was written
    RETIRED = "retired"  # ticket, code, detail: the status
    DELIVERED = "delivered"  # ticket, session, generation: `wait` gave it to the host; detail "stray" for an extra one
    RESET = "reset"  # chips, detail: the scope
    HOST_ENDED = "host_ended"  # the host's process let go of the board
    FAULT = "fault"  # detail: the fault point that fired

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class RowFact:
    """A live row of a job as the device read it: `tokens` at `positions` go to KV slots slot .. of `lane`."""

    lane: int
    slot: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """at_ns: the device's clock. ticket: number of the job's ticket, 0 where no job is meant."""

    at_ns: int
    kind: FactKind
    ticket: int = 0
    session: str = ""
    generation: int = 0
    chips: tuple[int, ...] = ()
    rows: tuple[RowFact, ...] = ()
    spec: JobSpec | None = None
    code: int = 0
    detail: str = ""


Listener = Callable[[DeviceFact], None]
