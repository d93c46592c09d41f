"""Goldens and step times, on a session nobody else uses yet.

Owns a naive loop over the contract: encode, submit, ask for the job's end (see `awaiting`), look. A golden that fails
keeps the generation from ever being Ready; the measured times are what profile choice and execution deadlines rest on.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Generator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from calserve.core.board import StepTime
from calserve.core.events import JobFailed
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.core.outcomes import LOST_STAGE, Failure, FaultClass
from calserve.executor.awaiting import Awaited, AwaitJob
from calserve.executor.clock import Clock
from calserve.executor.completion import is_stray, says_over, stray_of
from calserve.executor.logits import LogitsFault, read_logits
from calserve.executor.prepare import check_prepared
from calserve.runtime.checks import KvRoom, check_buffers
from calserve.runtime.contract import (
    BoardPackage,
    Golden,
    GraphContract,
    HostBuffers,
    JobStatus,
    Session,
    StatusKind,
    Ticket,
)
from calserve.runtime.encoding import encode, logits_index
from calserve.runtime.errors import CalCode, failure, meaning

_log = logging.getLogger(__name__)

Logits = np.ndarray[Any, np.dtype[np.float32]]
_End = TypeVar("_End")
_Steps = Generator[AwaitJob, Awaited, _End]

# A step that takes longer than this while warming up is a board that does not answer.
STEP_TIMEOUT_NS = 60_000_000_000
_TIMED_STEPS = 7
_PREFILL_LENGTHS = (32, 160)


class WarmupFailed(Exception):
    """Unwinds the loop; leaves `warm_session` as its `failure` value."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class WarmTimes:
    """The clock a warm-up measures with, and how long one of its steps may take. is_thorough: goldens also run in the
    widest batch with all its other lanes unused: a wrong policy for these shows nowhere else."""

    clock: Clock
    step_timeout_ns: int = STEP_TIMEOUT_NS
    is_thorough: bool = False


@dataclass(frozen=True, slots=True)
class WarmAside:
    """What else comes of a warm-up. strays: completions of older generations, for `core` to count. unended: memory of
    a job that the board never called over: the device may write it."""

    strays: list[JobFailed] = field(default_factory=list)
    unended: list[HostBuffers] = field(default_factory=list)


def warm_session(
    session: Session, package: BoardPackage, generation: int, times: WarmTimes, aside: WarmAside
) -> _Steps[tuple[StepTime, ...] | Failure]:
    """Run every golden, then time each graph. Returns step times per graph, or the first failure; an exception, whose
    cause can only be the package or the board, is one too."""
    rig = _Rig(session, generation, times, strays=aside.strays)
    try:
        for golden in package.goldens:
            yield from _check_golden(rig, golden, package.golden_tolerance, 1)
            if times.is_thorough and rig.decode_graph(package.max_lanes) is not rig.decode_graph(1):
                yield from _check_golden(rig, golden, package.golden_tolerance, package.max_lanes)
        return (yield from _measure(rig, package))
    except WarmupFailed as end:
        return end.failure
    except Exception as error:
        _log.exception("a warm-up stopped")
        wrong = f"the warm-up stopped: {type(error).__name__}: {error}"
        if rig.is_out:
            return Failure(LOST_STAGE, 0, FaultClass.UNKNOWN, wrong)
        return Failure("warm", 0, FaultClass.ARTIFACT, wrong)
    finally:
        if rig.is_out:
            aside.unended.extend(rig.buffers.values())


def _lost(code: int, status: JobStatus | None, step: str = "wait") -> Failure:
    """Nothing says that the job is over, whatever the code: the device may write on."""
    if code == CalCode.TIMEOUT:
        return Failure(LOST_STAGE, code, FaultClass.UNKNOWN, "a warm-up job never came back")
    if code:
        return failure(LOST_STAGE, code, f"{step}: {meaning(code).name}, and no word that the job is over")
    named = "the completion names another job or generation" if status else f"{step}: success without a status"
    return Failure(LOST_STAGE, code, FaultClass.UNKNOWN, named)


@dataclass(slots=True)
class _Rig:
    """Runs one job at a time, synchronously. Lanes and units are given out by position: lane i, units i*n..."""

    session: Session
    generation: int
    times: WarmTimes
    buffers: dict[str, HostBuffers] = field(default_factory=dict)
    strays: list[JobFailed] = field(default_factory=list)
    job: int = -1
    is_out: bool = False  # the device may be at work on a job of ours

    @property
    def room(self) -> KvRoom:
        return KvRoom(self.session.lanes, self.session.unit_tokens, self.session.kv_units)

    def units(self, lane: int, length: int) -> tuple[int, ...]:
        per_lane = max(1, self.session.kv_units // self.session.lanes)
        needed = -(-length // self.session.unit_tokens)
        if needed > per_lane:
            wrong = f"{length} tokens need {needed} units, a lane has {per_lane}"
            raise WarmupFailed(Failure("warm", CalCode.OUT_OF_RANGE, FaultClass.ARTIFACT, wrong))
        return tuple(range(lane * per_lane, lane * per_lane + needed))

    def row(self, lane: int, first: int, count: int) -> Row:
        units = self.units(lane, first + count)
        code = self.session.kv.apply(lane, units, first + count)
        if code:
            raise WarmupFailed(failure("warm", code, f"lane {lane} was refused by the board's KV"))
        return Row(f"warm-{lane}", lane, units, first, count, LogitsWanted.LAST)

    def run(
        self, graph: GraphContract, task: Task, rows: Many[Row], tokens: Many[Many[int]]
    ) -> _Steps[tuple[Logits, int]]:
        """One job to its end: float32[rows, vocab] (copied) and its duration in ns from submit."""
        self.job -= 1
        deadline = self.times.clock() + self.times.step_timeout_ns
        spec = JobSpec(self.job, self.generation, self.session.name, graph.name, task, Bank.AUTO, deadline, tuple(rows))
        buffers = self._buffers(graph)
        wrong = check_prepared(graph, spec, self.room, tokens)
        if wrong:
            raise WarmupFailed(Failure("warm", wrong.code, FaultClass.ARTIFACT, wrong.detail))
        fault = encode(graph, spec, tokens, buffers)
        if fault:
            raise WarmupFailed(failure("warm", fault.code, f"{fault.operation} of {fault.tensor}"))
        began = self.times.clock()
        ticket = self._submit(spec, buffers)
        code, status = yield from self._end_of(ticket)
        took = self.times.clock() - began
        if code == CalCode.TIMEOUT or not says_over(status, ticket, self.generation):
            raise WarmupFailed(_lost(code, status))
        self.is_out = False
        if code or status is None or status.status is not StatusKind.DONE:
            raise WarmupFailed(failure("warm", code or CalCode.DEVICE_CRASH, f"wait: {status and status.status.value}"))
        logits = read_logits(graph, buffers, [at for at in logits_index(graph, spec) if at is not None])
        if isinstance(logits, LogitsFault):
            raise WarmupFailed(Failure("warm", logits.code, FaultClass.ARTIFACT, logits.detail))
        if not np.isfinite(logits).all():
            raise WarmupFailed(Failure("warm", CalCode.UNEXPECTED, FaultClass.ARTIFACT, "logits are not finite"))
        logits = logits.copy()
        code = buffers.undo_slices() or buffers.reset()
        if code:
            raise WarmupFailed(failure("warm", code, "buffers could not be cleaned"))
        return logits, took

    def _submit(self, spec: JobSpec, buffers: HostBuffers) -> Ticket:
        """Code and ticket are judged together: where they do not agree the device may run the job. So it may where the
        call breaks off: only a refusal says that it does not."""
        self.is_out = True
        code, ticket = self.session.submit(spec, buffers)
        if code and ticket is None:
            self.is_out = False
            raise WarmupFailed(failure("warm", code, "submit"))
        if code or ticket is None:
            raise WarmupFailed(_lost(code, None, "submit"))
        return ticket

    def _end_of(self, ticket: Ticket) -> _Steps[Awaited]:
        """What the board says of the job. A completion of an older generation is set aside, and the job waited on."""
        while True:
            code, status = yield AwaitJob(self.session, ticket, self.times.step_timeout_ns)
            if status is None or not is_stray(status, ticket, self.generation):
                return code, status
            self.strays.append(stray_of(status))

    def release(self, lanes: int) -> None:
        """Nothing that a warm-up held is held when it is over: a lane the device keeps would serve nobody."""
        for lane in range(lanes):
            code = self.session.kv.release(lane)
            if code:
                raise WarmupFailed(Failure("warm", code, FaultClass.LIFECYCLE, f"lane {lane} was not released"))

    def prefill_graph(self) -> GraphContract:
        return _first(self.session, Task.PREFILL)

    def decode_graph(self, lanes: int) -> GraphContract | None:
        """The smallest graph that decodes `lanes` sequences at once."""
        fits = [g for g in _able(self.session, Task.DECODE) if g.profile.batch >= lanes]
        return min(fits, key=lambda g: g.profile.batch, default=None)

    def _buffers(self, graph: GraphContract) -> HostBuffers:
        if graph.name not in self.buffers:
            code, made = self.session.allocate(graph.name, Bank.AUTO)
            if code:
                raise WarmupFailed(failure("warm", code, f"buffers of {graph.name}"))
            if made is None:
                wrong = f"success without buffers of {graph.name}"
                raise WarmupFailed(Failure("warm", code, FaultClass.UNKNOWN, wrong))
            complaint = check_buffers(graph, made)
            if complaint is not None:
                raise WarmupFailed(Failure("warm", complaint[0], FaultClass.ARTIFACT, complaint[1]))
            self.buffers[graph.name] = made
        return self.buffers[graph.name]


def _able(session: Session, task: Task) -> list[GraphContract]:
    return [graph for graph in session.graphs.values() if task in graph.profile.tasks]


def _first(session: Session, task: Task) -> GraphContract:
    able = _able(session, task)
    if not able:
        raise WarmupFailed(Failure("warm", CalCode.INVALID_CALBIN, FaultClass.ARTIFACT, f"no graph can {task.value}"))
    return able[0]


def _check_golden(rig: _Rig, golden: Golden, tolerance: float, lanes: int) -> _Steps[None]:
    """Teacher-forced: each step's best token is the recorded one, unless the recorded lead was within tolerance.

    lanes: of the graph that decodes; all but lane 0 stay empty.
    """
    prompt, length = golden.prompt_ids, len(golden.prompt_ids)
    graph = rig.prefill_graph()
    logits, _ = yield from rig.run(graph, Task.PREFILL, [rig.row(0, 0, length)], [prompt])
    decode = rig.decode_graph(lanes)
    if decode is None:
        raise WarmupFailed(Failure("warm", CalCode.INVALID_CALBIN, FaultClass.ARTIFACT, "no graph can decode"))
    for step, (expected, margin) in enumerate(zip(golden.output_ids, golden.margins, strict=True)):
        best = int(logits[0].argmax())
        if best != expected and margin >= tolerance:
            detail = f"golden step {step}: token {best} where {expected} leads by {margin:.3f}"
            raise WarmupFailed(Failure("golden", CalCode.UNEXPECTED, FaultClass.ARTIFACT, detail))
        if step + 1 < len(golden.output_ids):
            row = rig.row(0, length + step, 1)
            logits, _ = yield from rig.run(decode, Task.DECODE, [row], [[expected]])
    rig.release(1)


def _measure(rig: _Rig, package: BoardPackage) -> _Steps[tuple[StepTime, ...]]:
    prefill = rig.prefill_graph()
    base, per_token = yield from _time_prefill(rig, prefill, package)
    decode: dict[str, list[tuple[int, int]]] = {}
    for lanes in sorted(set(package.profiles)):
        graph = rig.decode_graph(lanes)
        if graph is not None and lanes <= rig.session.lanes:
            took = yield from _time_decode(rig, graph, lanes, package)
            decode.setdefault(graph.name, []).append((lanes, took))
    times = []
    for graph in rig.session.graphs.values():
        does_prefill = Task.PREFILL in graph.profile.tasks
        times.append(
            StepTime(
                graph.name,
                tuple(decode.get(graph.name, ())),
                base if does_prefill else 0,
                per_token if does_prefill else 0,
            )
        )
    return tuple(times)


def _filler(package: BoardPackage, count: int) -> list[int]:
    """Ids that mean nothing, spread over the vocabulary."""
    return [(17 * i + 3) % package.vocab_size for i in range(count)]


def _time_prefill(rig: _Rig, graph: GraphContract, package: BoardPackage) -> _Steps[tuple[int, int]]:
    """(base, per token) in ns from two lengths, each the smaller of two runs."""
    room = min(graph.profile.max_row_tokens, graph.profile.max_tokens)
    lengths = [min(n, room) for n in _PREFILL_LENGTHS]
    took = []
    for length in lengths:
        runs = []
        for _ in range(2):
            rows = [rig.row(0, 0, length)]
            _, ns = yield from rig.run(graph, Task.PREFILL, rows, [_filler(package, length)])
            runs.append(ns)
            rig.release(1)
        took.append(min(runs))
    if lengths[1] == lengths[0]:
        return took[0], 0
    per_token = max(0, took[1] - took[0]) // (lengths[1] - lengths[0])
    return max(0, took[0] - per_token * lengths[0]), per_token


def _time_decode(rig: _Rig, graph: GraphContract, lanes: int, package: BoardPackage) -> _Steps[int]:
    """Median step time in ns with `lanes` sequences of a short common length."""
    prompt = _filler(package, min(8, graph.profile.max_tokens // 2))
    prefill = rig.prefill_graph()
    for lane in range(lanes):
        yield from rig.run(prefill, Task.PREFILL, [rig.row(lane, 0, len(prompt))], [prompt])
    steps = min(_TIMED_STEPS, graph.profile.max_tokens - len(prompt))
    took = []
    for step in range(steps):
        rows = [rig.row(lane, len(prompt) + step, 1) for lane in range(lanes)]
        _, ns = yield from rig.run(graph, Task.DECODE, rows, [[prompt[0]]] * lanes)
        took.append(ns)
    rig.release(lanes)
    return int(statistics.median(took))
