"""One submitted job inside the device: what it read, what it will write, how it ends.

Owns: `Job`, and the meaning of a lane graph's input tensors for the device. Must not know: queues, time, other
jobs. The device believes only what its DMA read: nothing here looks at the host's job description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from calserve.core.job import Bank, JobSpec, Task
from calserve.runtime.contract import Code, GraphContract, InactiveLanePolicy, JobStatus, StatusKind, Ticket
from calserve.runtime.errors import CalCode
from calserve.runtime.sim.buffers import SimBuffers
from calserve.runtime.sim.facts import RowFact
from calserve.runtime.sim.model import Entry

if TYPE_CHECKING:
    from calserve.runtime.sim.calbin import Calbin

Read = Mapping[str, np.ndarray[Any, Any]]
Slot = tuple[int, Bank]


@dataclass(slots=True)
class RowWork:
    """What one live row writes and reads: `entries` from KV slot `slot` of `lane`, then logits over `length`.

    Never changed; not frozen, because a frozen one takes twice as long to make and a job makes one a row.
    """

    row: int
    lane: int
    slot: int
    entries: list[Entry]
    length: int

    def fact(self) -> RowFact:
        if len(self.entries) == 1:
            token, position = self.entries[0]
            return RowFact(self.lane, self.slot, (token,), (position,), self.length)
        tokens, positions = zip(*self.entries, strict=True) if self.entries else ((), ())
        return RowFact(self.lane, self.slot, tokens, positions, self.length)


@dataclass(slots=True, eq=False)
class Job:
    """A job from `submit` until its completion was delivered.

    spec: the host's description, kept for the device's account only; the job runs on what its DMA read.
    row_facts: `rows` as that account tells them; empty where nobody listens.

    Invariants: retired once (`is_retired` never goes back); after `is_killed` no event of it has any effect;
    with `writes_stopped` a late job ends, but changes neither KV nor host memory.
    """

    ticket: Ticket
    calbin: Calbin
    graph: GraphContract
    buffers: SimBuffers
    bank: Bank
    ready_ns: int
    csrs: Mapping[str, int]
    input_bytes: int
    output_bytes: int
    spec: JobSpec | None = None
    slots: tuple[Slot, ...] = ()
    used_bank: Bank = Bank.AUTO
    rows: list[RowWork] = field(default_factory=list)
    row_facts: tuple[RowFact, ...] = ()
    is_sound: bool = True
    is_late: bool = False
    is_killed: bool = False
    is_kv_written: bool = False
    is_retired: bool = False
    writes_stopped: bool = False
    status: StatusKind = StatusKind.QUEUED
    code: Code = CalCode.SUCCESS
    logits: npt.NDArray[np.float32] | None = None
    h2d_ns: int = 0
    device_ns: int = 0
    d2d_ns: int = 0
    d2h_ns: int = 0
    report: JobStatus | None = None

    @property
    def chips(self) -> tuple[int, ...]:
        return self.calbin.chips

    @property
    def is_prefill(self) -> bool:
        return Task.PREFILL in self.graph.profile.tasks

    @property
    def token_count(self) -> int:
        return sum(len(row.entries) for row in self.rows)

    def completion(self) -> JobStatus:
        """What the device says of this job."""
        return JobStatus(self.ticket, self.ticket.generation, self.status, self.h2d_ns, self.device_ns, self.d2h_ns)

    def read(self) -> None:
        """H2D: take in the host memory as it is now. Garbage makes the job unsound, never an exception."""
        rows = read_rows(self.graph, self.buffers.dma_read(), self.csrs)
        self.rows = rows
        self.is_sound = bool(rows) and all(_is_row_sound(self.graph, row, self.calbin.lanes) for row in rows)


def read_rows(graph: GraphContract, read: Read, csrs: Mapping[str, int]) -> list[RowWork]:
    """Live rows of a job, from its tensors (and CSRs, on graphs that have them).

    A token goes to KV slot `length - count + i` whatever its position says; the position is stored beside it.
    """
    tokens, positions = read["tokens"], read["positions"]
    batch, width = tokens.shape
    if graph.csr_names:
        counts, lengths = [csrs[graph.csr_names[0]]], [csrs[graph.csr_names[1]]]
    else:
        counts, lengths = read["counts"].tolist(), read["lengths"].tolist()
    lanes = read["kv_lanes"].tolist() if "kv_lanes" in read else range(batch)
    live = _live_rows(graph, read, batch)
    if width == 1:
        ids, at = tokens[:, 0].tolist(), positions[:, 0].tolist()
        return [
            RowWork(row, lanes[row], lengths[row] - counts[row], [(ids[row], at[row])] * counts[row], lengths[row])
            for row in live
        ]
    rows = []
    for row in live:
        count = counts[row]
        entries = list(zip(tokens[row, :count].tolist(), positions[row, :count].tolist(), strict=True))
        if len(entries) < count:
            entries = []
        rows.append(RowWork(row, lanes[row], lengths[row] - count, entries, lengths[row]))
    return rows


def _live_rows(graph: GraphContract, read: Read, batch: int) -> list[int]:
    if graph.inactive_lane_policy is InactiveLanePolicy.VALID_MASK:
        return [row for row, valid in enumerate(read["valid"].tolist()) if valid]
    if graph.inactive_lane_policy is InactiveLanePolicy.POSITION_MINUS_ONE:
        return [row for row, first in enumerate(read["positions"][:, 0].tolist()) if first != -1]
    return list(range(batch))


def _is_row_sound(graph: GraphContract, row: RowWork, lanes: int) -> bool:
    """Whether the graph can run this row at all; an impossible one raises a CCU exception on the device."""
    return (
        0 <= row.lane < lanes
        and row.slot >= 0
        and 1 <= len(row.entries) <= graph.profile.max_row_tokens
        and row.length <= graph.profile.max_tokens
        and all(0 <= token < graph.vocab_size for token, _ in row.entries)
    )
