"""Many runs on several processes, which end with the command whatever ends it.

Owns: the worker processes and who runs what. Must not know: what is done with a result. Life: `run_on_processes` is a
generator; whoever leaves it early, by an exception or a signal, leaves no worker behind.

A worker ignores Ctrl-C, which a terminal sends to all of them: the parent decides, and kills. What ends the parent
without its knowledge ends them too (`calserve.stopping`).
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

from calserve.simulate.plan import RunPlan
from calserve.simulate.result import RunResult
from calserve.stopping import ASKING, end_with, holding_back

Work = Callable[[RunPlan], RunResult]


class WorkerError(RuntimeError):
    """A run broke in its worker, or the worker is gone; the text has what it said."""


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    plan: RunPlan | None = None

    def give(self, plan: RunPlan | None) -> None:
        self.plan = plan
        if plan is not None:
            self.pipe.send(plan)

    def take(self) -> tuple[RunPlan, RunResult]:
        assert self.plan is not None, "nothing was asked of it"
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise WorkerError(f"the worker of seed {self.plan.seed} ended with {self.process.exitcode}") from None
        if not isinstance(answer, RunResult):
            raise WorkerError(f"the worker of seed {self.plan.seed} broke: {answer}")
        return self.plan, answer


def run_on_processes(plans: Sequence[RunPlan], work: Work, processes: int) -> Iterator[tuple[RunPlan, RunResult]]:
    """Each plan with its result, as they are done. work: picklable, and raises nothing that is not our own mistake."""
    left = iter(plans)
    workers: list[_Worker] = []
    try:
        for _ in range(min(processes, len(plans))):
            workers.append(_start(work))
            workers[-1].give(next(left))
        busy = {worker.pipe: worker for worker in workers}
        while busy:
            for pipe in cast("list[Connection]", wait(list(busy))):
                worker = busy[pipe]
                done = worker.take()
                worker.give(next(left, None))
                if worker.plan is None:
                    del busy[pipe]
                yield done
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()


def _start(work: Work) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work, os.getpid()), daemon=True)
    resource_tracker.ensure_running()  # else `start` does it, and takes the mask away
    # An exception between the start and what the child is told first would leave it reading, and saying so. The mask is
    # for the child: what a terminal sends to all of them waits until it has said what it does with it.
    with holding_back():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()  # else its end would not show
    return _Worker(process, ours)


def _serve(pipe: Connection, work: Work, parent: int) -> None:
    """A worker's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
    end_with(parent)
    while True:
        try:
            plan = pipe.recv()
        except EOFError:
            return
        try:
            answer: RunResult | str = work(plan)
        except Exception:
            answer = traceback.format_exc()
        pipe.send(answer)
