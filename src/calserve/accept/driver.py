"""Sequences run straight over the contract: sets of them in turn, with one or two jobs in flight. One thread.

Owns: the specs, buffers and KV of its sequences, and when each step ended. Must not know: what a run is meant to
prove. Life of a set: made with prompts and lanes; each of its prompts is a prefill job, then all of it decodes
together, greedily, until it has as many tokens as were asked for; its lanes are released at the end of the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from calserve.core.board import RowBinding
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.executor.logits import LogitsFault, read_logits
from calserve.runtime.contract import GraphContract, HostBuffers, Session, StatusKind, Ticket
from calserve.runtime.encoding import encode, logits_index

# A step that takes longer is a board that does not answer.
STEP_TIMEOUT_NS = 60_000_000_000


class Stopped(Exception):
    """The board failed a step; `str()` is the sentence. Nothing after it can be measured."""


@dataclass(slots=True, eq=False)
class SequenceSet:
    """Sequences that decode together in one job; sequence i holds lane `lanes[i]`.

    outputs: the greedy tokens of each. ended_ns: when each decode step ended, on the driver's clock.
    """

    lanes: tuple[int, ...]
    prompts: tuple[tuple[int, ...], ...]
    bank: Bank = Bank.AUTO
    outputs: list[list[int]] = field(default_factory=list)
    ended_ns: list[int] = field(default_factory=list)

    @property
    def is_prefilled(self) -> bool:
        return len(self.outputs) == len(self.prompts)

    def has_left(self, tokens: int) -> bool:
        """Whether a sequence has fewer than `tokens` tokens yet."""
        return not self.is_prefilled or len(self.outputs[0]) < tokens

    def gaps_ns(self) -> list[int]:
        """Times between one token of a sequence and its next."""
        return [after - before for before, after in zip(self.ended_ns, self.ended_ns[1:], strict=False)]


@dataclass(slots=True, eq=False)
class _Flight:
    group: SequenceSet
    spec: JobSpec
    graph: GraphContract
    buffers: HostBuffers
    ticket: Ticket


@dataclass(slots=True)
class Driver:
    """Runs sets on one session. jobs: the bank each job was submitted to.

    clock: in ns, the time in which speed is told. spend: called after every step, for the time a host takes
    between a completion and the next submit; on the wall nothing has to be added.
    """

    session: Session
    generation: int
    clock: Callable[[], int]
    spend: Callable[[], None]
    jobs: dict[int, Bank] = field(default_factory=dict)
    _free: dict[tuple[str, Bank], list[HostBuffers]] = field(default_factory=dict)

    def run(self, sets: Sequence[SequenceSet], tokens: int, in_flight: int) -> None:
        """Every set up to `tokens` tokens a sequence, in turn, with at most `in_flight` jobs with the board.

        Raises Stopped.
        """
        ready = deque(group for group in sets if group.has_left(tokens))
        flying: deque[_Flight] = deque()
        while ready or flying:
            while ready and len(flying) < in_flight:
                flying.append(self._start(ready.popleft()))
            flight = flying.popleft()
            self._finish(flight)
            if flight.group.has_left(tokens):
                ready.append(flight.group)

    def release(self, sets: Sequence[SequenceSet]) -> None:
        for group in sets:
            for lane in group.lanes:
                self._judge("kv release", self.session.kv.release(lane))

    def decode_graph(self, lanes: Sequence[int]) -> GraphContract | None:
        """The smallest graph that decodes these lanes in one job."""
        able = [g for g in self.session.graphs.values() if Task.DECODE in g.profile.tasks and _reaches(g, lanes)]
        return min(able, key=lambda g: g.profile.batch, default=None)

    def _start(self, group: SequenceSet) -> _Flight:
        if group.is_prefilled:
            at = range(len(group.lanes))
            tokens = [[output[-1]] for output in group.outputs]
            firsts = [len(p) + len(out) - 1 for p, out in zip(group.prompts, group.outputs, strict=True)]
            task, graph = Task.DECODE, self.decode_graph(group.lanes)
        else:
            number = len(group.outputs)
            at, tokens, firsts = range(number, number + 1), [list(group.prompts[number])], [0]
            task, graph = Task.PREFILL, self._prefill_graph(group.lanes[number], len(tokens[0]))
        if graph is None:
            raise Stopped(f"no graph can {task.value} lanes {group.lanes}")
        rows = tuple(
            self._row(group.lanes[i], first, len(ids)) for i, first, ids in zip(at, firsts, tokens, strict=True)
        )
        spec = JobSpec(len(self.jobs) + 1, self.generation, self.session.name, graph.name, task, group.bank, 0, rows)
        buffers = self._take(graph.name, group.bank)
        fault = encode(graph, spec, tokens, buffers)
        if fault is not None:
            raise Stopped(f"{fault.operation} of {fault.tensor} gave code {fault.code}")
        self.jobs[spec.job] = group.bank
        code, ticket = self.session.submit(spec, buffers)
        if ticket is None:
            raise Stopped(f"submit of job {spec.job} gave code {code}")
        return _Flight(group, spec, graph, buffers, ticket)

    def _finish(self, flight: _Flight) -> None:
        code, status = self.session.wait(flight.ticket, STEP_TIMEOUT_NS)
        job = flight.spec.job
        self._judge(f"wait for job {job}", code)
        if status is None or status.status is not StatusKind.DONE:
            raise Stopped(f"job {job} ended with status {status.status.value if status else 'none'}")
        if status.ticket != flight.ticket or status.generation != self.generation:
            raise Stopped(f"the completion of job {job} names job {status.ticket.job}, generation {status.generation}")
        wanted = [at for at in logits_index(flight.graph, flight.spec) if at is not None]
        logits = read_logits(flight.graph, flight.buffers, wanted)
        if isinstance(logits, LogitsFault):
            raise Stopped(f"output of job {job}: {logits.detail}")
        best = logits.argmax(axis=1)
        if not np.isfinite(logits[np.arange(len(best)), best]).all():
            raise Stopped(f"output of job {job} is not finite")
        tokens = best.tolist()
        self._judge("undo of slices", flight.buffers.undo_slices())
        self._judge("reset of buffers", flight.buffers.reset())
        self._free[flight.graph.name, flight.spec.bank].append(flight.buffers)
        self.spend()
        group = flight.group
        if flight.spec.task is Task.PREFILL:
            group.outputs.append(tokens)
            return
        for output, token in zip(group.outputs, tokens, strict=True):
            output.append(token)
        group.ended_ns.append(self.clock())

    def _row(self, lane: int, first: int, count: int) -> Row:
        session = self.session
        per_lane = session.kv_units // session.lanes
        used = -(-(first + count) // session.unit_tokens)
        units = tuple(range(lane * per_lane, lane * per_lane + used))
        self._judge(f"KV of lane {lane}", session.kv.apply(lane, units, first + count))
        return Row(f"lane-{lane}", lane, units, first, count, LogitsWanted.LAST)

    def _take(self, graph: str, bank: Bank) -> HostBuffers:
        free = self._free.setdefault((graph, bank), [])
        if free:
            return free.pop()
        code, buffers = self.session.allocate(graph, bank)
        if buffers is None:
            raise Stopped(f"buffers of {graph} gave code {code}")
        return buffers

    def _prefill_graph(self, lane: int, length: int) -> GraphContract | None:
        able = [
            g
            for g in self.session.graphs.values()
            if Task.PREFILL in g.profile.tasks and _reaches(g, (lane,)) and g.profile.max_row_tokens >= length
        ]
        return min(able, key=lambda g: g.profile.max_row_tokens, default=None)

    def _judge(self, what: str, code: int) -> None:
        if code:
            raise Stopped(f"{what} gave code {code}")


def _reaches(graph: GraphContract, lanes: Sequence[int]) -> bool:
    profile = graph.profile
    needed = len(lanes) if profile.row_binding is RowBinding.FREE else max(lanes) + 1
    return profile.batch >= needed
