"""The raw loop: the board's contract driven straight, with no server, scheduler or sampler beside argmax.

What a server can reach at best on this board: prompts in one prefill job, then one decode job a step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from calserve.bench.workload import Run, Work
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.runtime.contract import GraphContract, HostBuffers, Session, StatusKind
from calserve.runtime.encoding import encode

_TIMEOUT_NS = 60_000_000_000


class RawLoop:
    """One session, one graph that can do everything, one set of buffers."""

    def __init__(self, session: Session, generation: int) -> None:
        self._session = session
        self._generation = generation
        self._graph: GraphContract = next(iter(session.graphs.values()))
        code, buffers = session.allocate(self._graph.name, Bank.AUTO)
        if buffers is None:
            raise RuntimeError(f"no buffers: code {code}")
        self._buffers: HostBuffers = buffers
        self._job = 0

    def run(self, work: Work) -> Run:
        """Prefill every prompt, decode `new_tokens` for each, all rows together."""
        began = time.perf_counter()
        lanes, length = len(work.prompts), len(work.prompts[0])
        tokens = self._step(Task.PREFILL, 0, work.prompts)
        for step in range(1, work.new_tokens):
            tokens = self._step(Task.DECODE, length + step - 1, [[token] for token in tokens])
        seconds = time.perf_counter() - began
        for lane in range(lanes):
            self._session.kv.release(lane)
        return Run(lanes * work.new_tokens, seconds)

    def decode_step_ns(self, prompts: Sequence[Sequence[int]], steps: int) -> list[int]:
        """Durations of `steps` decode steps of all prompts together, each from the end of the one before."""
        length = len(prompts[0])
        tokens = self._step(Task.PREFILL, 0, prompts)
        durations: list[int] = []
        before = time.monotonic_ns()
        for step in range(steps):
            tokens = self._step(Task.DECODE, length + step, [[token] for token in tokens])
            now = time.monotonic_ns()
            durations.append(now - before)
            before = now
        for lane in range(len(prompts)):
            self._session.kv.release(lane)
        return durations

    def _step(self, task: Task, first: int, tokens: Sequence[Sequence[int]]) -> list[int]:
        self._job += 1
        count, bank = len(tokens[0]), Bank.AUTO
        rows = tuple(self._row(lane, first, count) for lane in range(len(tokens)))
        graph, session = self._graph, self._session
        spec = JobSpec(self._job, self._generation, session.name, graph.name, task, bank, 0, rows)
        fault = encode(graph, spec, tokens, self._buffers)
        if fault:
            raise RuntimeError(str(fault))
        code, ticket = session.submit(spec, self._buffers)
        if ticket is None:
            raise RuntimeError(f"submit: code {code}")
        code, status = session.wait(ticket, _TIMEOUT_NS)
        if code or status is None or status.status is not StatusKind.DONE:
            raise RuntimeError(f"wait: code {code}")
        best: list[int] = self._buffers.output("logits").argmax(axis=-1).tolist()
        return best

    def _row(self, lane: int, first: int, count: int) -> Row:
        per_lane = self._session.kv_units // self._session.lanes
        used = -(-(first + count) // self._session.unit_tokens)
        units = tuple(range(lane * per_lane, lane * per_lane + used))
        if first == 0 or first % self._session.unit_tokens == 0:
            self._session.kv.apply(lane, units, first + count)
        return Row(f"raw-{lane}", lane, units, first, count, LogitsWanted.LAST)
