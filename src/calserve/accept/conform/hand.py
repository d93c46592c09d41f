"""A naive user of the contract: encode, submit, wait, read, and nothing that decides.

Owns: lanes, units and lengths of the sequences of one session, and its buffers. Must not know: what is being proven.
Life of a line: made for a lane, grows by the jobs it takes part in, released at the end. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calserve.accept.driver import STEP_TIMEOUT_NS, Stopped
from calserve.core.board import RowBinding
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.executor.logits import LogitsFault, read_logits
from calserve.runtime.checks import KvRoom, check_job
from calserve.runtime.contract import GraphContract, HostBuffers, KvLayout, Session, StatusKind, Ticket
from calserve.runtime.encoding import encode, logits_index

Logits = np.ndarray[Any, np.dtype[np.float32]]
Ids = list[int]


class Declined(Stopped):
    """The board, or the host before it, gave a code where a job was to start; nothing runs."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(slots=True, eq=False)
class Line:
    """One sequence: the lane it sits in, the units it holds, how many tokens its KV has."""

    lane: int
    units: tuple[int, ...] = ()
    length: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one line does in one job."""

    line: Line
    tokens: Ids
    logits: LogitsWanted = LogitsWanted.LAST


@dataclass(frozen=True, slots=True)
class Flying:
    spec: JobSpec
    graph: GraphContract
    buffers: HostBuffers
    ticket: Ticket


@dataclass(slots=True, eq=False)
class Hand:
    """Drives one session. Invariants: a unit belongs to one line; a line's length is what its jobs wrote.

    spend: called after every job, for the host's own time on a virtual clock.
    """

    session: Session
    generation: int
    spend: Callable[[], None] = lambda: None
    jobs: int = 0
    _buffers: dict[tuple[str, Bank], HostBuffers] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free = list(range(self.session.kv_units))

    @property
    def has_lane_units(self) -> bool:
        """Whether a unit is a whole lane, and unit i lane i."""
        return all(graph.kv_layout is KvLayout.LANES for graph in self.session.graphs.values())

    @property
    def has_free_rows(self) -> bool:
        """Whether any sequence may sit in any row of a decode graph."""
        decodes = [g for g in self.session.graphs.values() if Task.DECODE in g.profile.tasks]
        return all(graph.profile.row_binding is RowBinding.FREE for graph in decodes)

    @property
    def rows_max(self) -> int:
        """Most rows one decode job may have here."""
        batches = [g.profile.batch for g in self.session.graphs.values() if Task.DECODE in g.profile.tasks]
        return min(max(batches, default=0), self.session.lanes)

    @property
    def least_piece(self) -> int:
        """Fewest tokens a piece of a prompt may have."""
        graphs = [g for g in self.session.graphs.values() if Task.PREFILL in g.profile.tasks]
        return max((graph.profile.min_chunk_tokens for graph in graphs), default=1)

    def prefill(self, line: Line, ids: Ids, pieces: Sequence[int] = ()) -> Logits:
        """Logits of the last token; the prompt in one job, or in pieces of the given lengths."""
        sizes, at = list(pieces) or [len(ids)], 0
        assert sum(sizes) == len(ids)
        rows: list[Logits | None] = []
        for size in sizes:
            wanted = LogitsWanted.LAST if at + size == len(ids) else LogitsWanted.NONE
            rows = self.step([Turn(line, ids[at : at + size], wanted)])
            at += size
        assert rows[0] is not None
        return rows[0]

    def decode(self, lines: Sequence[Line], tokens: Sequence[int]) -> list[Logits]:
        """Logits of every line after one more token each."""
        rows = self.step([Turn(line, [token]) for line, token in zip(lines, tokens, strict=True)])
        return [row for row in rows if row is not None]

    def again(self, lines: Sequence[Line], tokens: Sequence[int]) -> list[Logits]:
        """A decode that leaves the lines as they were: the KV it wrote is written again by the next one."""
        rows = self.decode(lines, tokens)
        for line in lines:
            line.length -= 1
        return rows

    def greedy(self, line: Line, first: Logits, tokens: int) -> Ids:
        """`tokens` ids, the first of them the best of `first`."""
        out = [best(first)]
        while len(out) < tokens:
            out.append(best(self.decode([line], out[-1:])[0]))
        return out

    def step(self, turns: Sequence[Turn]) -> list[Logits | None]:
        """One job from start to end; a copy of each row's last logits, None where none were asked.

        Raises Declined where it did not start, Stopped where it went wrong.
        """
        rows = self.land(self.fly(*self.describe(turns)))
        for turn in turns:
            turn.line.length += len(turn.tokens)
        return rows

    def describe(self, turns: Sequence[Turn], bank: Bank = Bank.AUTO) -> tuple[JobSpec, list[Ids]]:
        """The job of these turns on the smallest graph that takes it, its KV applied to the mirror."""
        rows = tuple(self._row(turn) for turn in turns)
        kinds = {Task.DECODE if row.token_count == 1 and row.first_position else Task.PREFILL for row in rows}
        task = kinds.pop() if len(kinds) == 1 else Task.MIXED
        graph = self.choose_graph(task, rows)
        if graph is None:
            raise Declined(f"no graph takes a {task.value} of {len(rows)} rows", 0)
        self.jobs += 1
        spec = JobSpec(self.jobs, self.generation, self.session.name, graph.name, task, bank, 0, rows)
        return spec, [turn.tokens for turn in turns]

    def fly(self, spec: JobSpec, tokens: Sequence[Ids]) -> Flying:
        """Start it. Raises Declined."""
        graph, buffers = self.session.graphs[spec.graph], self.buffers(spec.graph, spec.bank)
        wrong = check_job(graph, spec, KvRoom(self.session.lanes, self.session.unit_tokens, self.session.kv_units))
        if wrong is not None:
            raise Declined(wrong[1], wrong[0])
        if fault := encode(graph, spec, tokens, buffers):
            self.give_back(buffers)
            raise Declined(f"{fault.operation} of {fault.tensor} gave code {fault.code}", fault.code)
        code, ticket = self.session.submit(spec, buffers)
        if code and ticket is None:
            self.give_back(buffers)
            raise Declined(f"submit of a {spec.task.value} of {len(spec.rows)} rows gave code {code}", code)
        if code or ticket is None:
            has = "with" if ticket else "without"
            raise Stopped(f"submit gave code {code} {has} a ticket, which contradicts itself")
        return Flying(spec, graph, buffers, ticket)

    def land(self, flying: Flying) -> list[Logits | None]:
        """Wait for it and read it."""
        code, status = self.session.wait(flying.ticket, STEP_TIMEOUT_NS)
        job = flying.spec.job
        if code:
            raise Stopped(f"wait for job {job} gave code {code}")
        if status is None or status.status is not StatusKind.DONE:
            raise Stopped(f"job {job} ended with status {status.status.value if status else 'none'}")
        if status.ticket != flying.ticket or status.generation != self.generation:
            raise Stopped(f"the completion of job {job} names job {status.ticket.job}, generation {status.generation}")
        index = logits_index(flying.graph, flying.spec)
        wanted = [at for at in index if at is not None]
        logits = read_logits(flying.graph, flying.buffers, wanted) if wanted else np.empty((0, 0), np.float32)
        if isinstance(logits, LogitsFault):
            raise Stopped(f"output of job {job}: {logits.detail}")
        if not np.isfinite(logits).all():
            raise Stopped(f"output of job {job} is not finite")
        copied = iter(logits.copy())
        rows = [None if at is None else next(copied) for at in index]
        self.give_back(flying.buffers)
        self.spend()
        return rows

    def release(self, line: Line) -> None:
        self._judge(f"release of lane {line.lane}", self.session.kv.release(line.lane))
        if not self.has_lane_units:
            self._free = [*line.units, *self._free]
        line.units, line.length = (), 0

    def trim(self, line: Line, length: int) -> int:
        """The code of holding only the first `length` tokens; the units beyond are free again when it is 0."""
        kept = line.units if self.has_lane_units else line.units[: -(-length // self.session.unit_tokens)]
        code = self.session.kv.apply(line.lane, kept, length)
        if not code:
            self._free = [*line.units[len(kept) :], *self._free]
            line.units, line.length = kept, length
        return code

    def buffers(self, graph: str, bank: Bank = Bank.AUTO) -> HostBuffers:
        made = self._buffers.get((graph, bank))
        if made is None:
            code, made = self.session.allocate(graph, bank)
            if made is None:
                raise Stopped(f"buffers of {graph} gave code {code}")
            self._buffers[graph, bank] = made
        return made

    def give_back(self, buffers: HostBuffers) -> None:
        self._judge("undo of slices", buffers.undo_slices())
        self._judge("reset of buffers", buffers.reset())

    def choose_graph(self, task: Task, rows: Sequence[Row]) -> GraphContract | None:
        """The smallest that takes these rows; fixed rows need it to reach the highest lane."""

        def fits(graph: GraphContract) -> bool:
            profile = graph.profile
            fixed = profile.row_binding is RowBinding.FIXED
            reach = max(row.lane for row in rows) + 1 if fixed else len(rows)
            return task in profile.tasks and reach <= profile.batch

        return min(filter(fits, self.session.graphs.values()), key=lambda graph: graph.profile.batch, default=None)

    def _row(self, turn: Turn) -> Row:
        line, end = turn.line, turn.line.length + len(turn.tokens)
        if self.has_lane_units:
            line.units = (line.lane,)
        while len(line.units) * self.session.unit_tokens < end and self._free:
            line.units = (*line.units, self._free.pop(0))
        code = self.session.kv.apply(line.lane, line.units, end)
        if code:
            raise Declined(f"{end} tokens of KV in lane {line.lane} gave code {code}", code)
        return Row(f"lane-{line.lane}", line.lane, line.units, line.length, len(turn.tokens), turn.logits)

    def _judge(self, what: str, code: int) -> None:
        if code:
            raise Stopped(f"{what} gave code {code}")


def best(logits: Logits) -> int:
    return int(logits.argmax())
