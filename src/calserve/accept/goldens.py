"""One model's goldens, a step at a time, on a session and in buffers of its own. One thread.

Owns: the specs, buffers and KV of its jobs, and what it found in their outputs. Must not know: what runs beside it.
Life of a GoldenRun: `start` gives the board the next step's job and `finish` waits for it and looks, in turn, until
`start` has none left; between the two, the board may work on somebody else's job as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calserve.accept.driver import STEP_TIMEOUT_NS, Stopped
from calserve.core.board import RowBinding
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.executor.logits import LogitsFault, read_logits
from calserve.runtime.contract import BoardPackage, Golden, GraphContract, HostBuffers, Session, StatusKind, Ticket
from calserve.runtime.encoding import encode, logits_index

LANE = 0


@dataclass(frozen=True, slots=True)
class _Step:
    """A job of a golden. expected: the token its logits must choose, with the lead it had when it was recorded."""

    task: Task
    first: int
    ids: tuple[int, ...]
    expected: int
    margin: float
    name: str


@dataclass(slots=True, eq=False)
class GoldenRun:
    """jobs: numbers nobody else on the board uses. mine: those it used. wrong: a sentence for each step that differs.

    Teacher-forced: every step is given the recorded tokens, so that one wrong step says nothing of the next.
    """

    session: Session
    package: BoardPackage
    generation: int
    jobs: Iterator[int]
    mine: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    steps_done: int = 0
    _left: Iterator[_Step] = field(default_factory=lambda: iter(()))
    _buffers: dict[str, HostBuffers] = field(default_factory=dict)
    _flight: tuple[_Step, JobSpec, GraphContract, Ticket] | None = None

    def rewind(self) -> None:
        """All goldens once more."""
        assert self._flight is None, "a job is with the board"
        self._left = _steps(self.package.goldens)

    def start(self) -> bool:
        """Submit the next step; False when there is none. Raises Stopped."""
        step = next(self._left, None)
        if step is None:
            self._judge("release of KV", self.session.kv.release(LANE))
            return False
        graph = self._graph(step)
        row = self._row(step)
        spec = JobSpec(next(self.jobs), self.generation, self.session.name, graph.name, step.task, Bank.AUTO, 0, (row,))
        buffers = self._take(graph.name)
        fault = encode(graph, spec, [step.ids], buffers)
        if fault is not None:
            raise Stopped(f"{fault.operation} of {fault.tensor} gave code {fault.code}")
        self.mine.append(spec.job)
        code, ticket = self.session.submit(spec, buffers)
        if code or ticket is None:
            raise Stopped(f"{self.package.model}: submit of job {spec.job} gave code {code}")
        self._flight = step, spec, graph, ticket
        return True

    def finish(self) -> None:
        """Wait for the step that was started, and look at its output. Raises Stopped."""
        assert self._flight is not None, "nothing was started"
        step, spec, graph, ticket = self._flight
        code, status = self.session.wait(ticket, STEP_TIMEOUT_NS)
        self._judge(f"wait for job {spec.job}", code)
        if status is None or status.status is not StatusKind.DONE:
            raise Stopped(f"job {spec.job} ended with status {status.status.value if status else 'none'}")
        if status.ticket != ticket or status.generation != self.generation:
            raise Stopped(f"the completion of job {spec.job} names job {status.ticket.job}")
        self._flight = None
        buffers = self._buffers[graph.name]
        wanted = [at for at in logits_index(graph, spec) if at is not None]
        logits = read_logits(graph, buffers, wanted)
        if isinstance(logits, LogitsFault):
            raise Stopped(f"output of job {spec.job}: {logits.detail}")
        best = int(logits[0].argmax())
        if not np.isfinite(logits[0]).all():
            self.wrong.append(f"{self.package.model}, {step.name}: logits are not finite")
        elif best != step.expected and step.margin >= self.package.golden_tolerance:
            self.wrong.append(
                f"{self.package.model}, {step.name}: token {best} where {step.expected} led by {step.margin:.3f}"
            )
        self.steps_done += 1
        self._judge("undo of slices", buffers.undo_slices())
        self._judge("reset of buffers", buffers.reset())

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The host memory of every tensor it has."""
        return [
            buffers.host(name)
            for graph, buffers in self._buffers.items()
            for contract in (self.session.graphs[graph],)
            for name in (*contract.inputs, *contract.outputs)
        ]

    def _row(self, step: _Step) -> Row:
        session, end = self.session, step.first + len(step.ids)
        units = tuple(range(-(-end // session.unit_tokens)))
        self._judge("KV", session.kv.apply(LANE, units, end))
        return Row(f"golden-{self.package.model}", LANE, units, step.first, len(step.ids), LogitsWanted.LAST)

    def _graph(self, step: _Step) -> GraphContract:
        """The smallest graph that does the step."""
        able = [
            graph
            for graph in self.session.graphs.values()
            if step.task in graph.profile.tasks and graph.profile.max_row_tokens >= len(step.ids)
        ]
        if not able:
            raise Stopped(f"{self.package.model}: no graph can {step.task.value} {len(step.ids)} tokens")
        return min(able, key=lambda graph: (graph.profile.row_binding is RowBinding.FREE, graph.profile.batch))

    def _take(self, graph: str) -> HostBuffers:
        if graph not in self._buffers:
            code, made = self.session.allocate(graph, Bank.AUTO)
            if code or made is None:
                raise Stopped(f"{self.package.model}: buffers of {graph} gave code {code}")
            self._buffers[graph] = made
        return self._buffers[graph]

    def _judge(self, what: str, code: int) -> None:
        if code:
            raise Stopped(f"{self.package.model}: {what} gave code {code}")


def _steps(goldens: Sequence[Golden]) -> Iterator[_Step]:
    for number, golden in enumerate(goldens):
        fed: tuple[int, ...] = golden.prompt_ids
        first, task = 0, Task.PREFILL
        for at, (expected, margin) in enumerate(zip(golden.output_ids, golden.margins, strict=True)):
            yield _Step(task, first, fed, expected, margin, f"golden {number}, step {at}")
            first, fed, task = len(golden.prompt_ids) + at, (expected,), Task.DECODE


def run_alone(run: GoldenRun) -> None:
    """Every golden of one model, a job at a time."""
    run_together((run,))


def run_together(runs: Sequence[GoldenRun]) -> None:
    """Every golden of each, with a job of each at the board from the first step of all to the last of one."""
    for run in runs:
        run.rewind()
    active = [run for run in runs if run.start()]
    while active:
        for run in tuple(active):
            run.finish()
            if not run.start():
                active.remove(run)
