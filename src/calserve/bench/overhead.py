"""What the executor costs a decode step: the production executor and a direct loop, in turn on one session.

Owns: one board, one `BoardExecutor` on its own threads (engine, sequences, greedy sampling, detokenizing, the
server's recorders; no HTTP), and a `RawLoop` over the session the executor configured. Both fill the same inputs
for the same rows at the same positions; only one of them runs at a time, on the same cores, weights and KV memory.
Must not know: who asks, how samples become a table. Life: loaded once in a process of its own, asked pair after pair.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Sequence as Many
from typing import Any, cast

from calserve.bench.raw import RawLoop
from calserve.bench.workload import Work
from calserve.core.commands import Command, SubmitJob
from calserve.core.config import SchedulerConfig
from calserve.core.engine import Engine
from calserve.core.events import Event, JobDone, Load, Submit
from calserve.core.job import Task
from calserve.core.outcomes import FinishReason
from calserve.core.snapshot import SessionView
from calserve.core.states import GenerationState
from calserve.executor.executor import BoardExecutor, ExecutorParts
from calserve.executor.messages import Delivery, Ending, Submission
from calserve.executor.sequence import GenerationParams, Sequence
from calserve.observe.record_log import RecordLog
from calserve.observe.requests import Measures
from calserve.runtime.contract import Board, BoardPackage, Code, LoadOptions, Session
from calserve.sampling.params import SamplingParams
from calserve.text.tokenizer import Tokenizer

SESSION = "overhead"
# Steps at the start of a turn that are not counted: what the other side touched has to leave the caches first.
COLD_STEPS = 8
# As `calserve serve` sets it: the default of 5 ms between switches would stand in the hand-overs.
SWITCH_INTERVAL_S = 0.0005
_TIMEOUT_S = 120.0


class OverheadSide:
    """Asked with a Work, answers {"loop": [ns...], "executor": [ns...]}: `new_tokens` counted steps each.

    The order of the two changes with every question. Raises RuntimeError when the board or a request fails.
    """

    def __init__(self, package: BoardPackage, board: Board) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._package = package
        self._tokenizer = Tokenizer.from_file(package.files["tokenizer"], eos_ids=package.eos_token_ids)
        self._outlet = _Outlet()
        self._stamps = _Stamps()
        watched = _Watched(board)
        options = LoadOptions(
            chips=(0,),
            numerics=package.numerics,
            lanes=package.max_lanes,
            kv_tokens=package.max_lanes * package.context,
        )
        self._executor = BoardExecutor(
            ExecutorParts(
                board=cast(Board, watched),
                engine=Engine(SchedulerConfig()),
                outlet=self._outlet,
                open_package=lambda _hash: package,
                options={SESSION: options},
                clock=time.monotonic_ns,
                recorders=(self._stamps, Measures((package.model,)), RecordLog()),
            )
        )
        self._executor.start()
        self._executor.post(Load(SESSION, package.model, package.hash))
        self._outlet.wait_settled()
        assert watched.session is not None
        self._loop = RawLoop(watched.session, watched.generation)
        self._asked = 0
        gc.collect()
        gc.freeze()  # as the server does once its models are ready
        gc.set_threshold(20_000, 50, 100)

    def run(self, work: Work) -> dict[str, Any]:
        """One pair. The executor's step is taken between the engine's turns for two completions in a row."""
        self._asked += 1
        sides = [("loop", self._run_loop), ("executor", self._run_executor)]
        answer: dict[str, Any] = {}
        for name, run in sides if self._asked % 2 else sides[::-1]:
            answer[name] = run(work)
        return answer

    def close(self) -> None:
        self._executor.close()

    def _run_loop(self, work: Work) -> list[int]:
        return self._loop.decode_step_ns(work.prompts, work.new_tokens + COLD_STEPS)[COLD_STEPS:]

    def _run_executor(self, work: Work) -> list[int]:
        # Prompts enter one by one, so the first is a step or two ahead: a few tokens more, and only the steps that
        # every row takes part in are counted.
        new_tokens = work.new_tokens + COLD_STEPS + 8
        params = GenerationParams(
            SamplingParams(temperature=0.0),
            new_tokens,
            self._package.vocab_size,
            ignore_eos=True,
            eos_ids=self._package.eos_token_ids,
        )
        self._stamps.begin(len(work.prompts))
        self._outlet.begin(len(work.prompts))
        for number, prompt in enumerate(work.prompts):
            name = f"{self._asked}-{number}"
            event = Submit(name, "default", self._package.model, len(prompt), new_tokens, time.monotonic_ns())
            self._executor.post(Submission(event, Sequence(name, prompt, params, self._tokenizer)))
        self._outlet.wait_ended()
        return self._stamps.durations[COLD_STEPS:][: work.new_tokens]


class _Watched:
    """A board that remembers the session it configured: the loop runs on the executor's own."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.session: Session | None = None
        self.generation = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._board, name)

    def configure(
        self, package: BoardPackage, options: LoadOptions, name: str, generation: int
    ) -> tuple[Code, Session | None]:
        code, session = self._board.configure(package, options, name, generation)
        self.session, self.generation = session, generation
        return code, session


class _Stamps:
    """Recorder: times from one completion to the next, of decode jobs with every row. The engine thread's only."""

    def __init__(self) -> None:
        self._rows = 0
        self._full: set[int] = set()
        self._last_ns: int | None = None
        self.durations: list[int] = []

    def begin(self, rows: int) -> None:
        self._rows = rows
        self._full.clear()
        self._last_ns = None
        self.durations = []

    def __call__(self, now_ns: int, event: Event, commands: Many[Command]) -> None:
        if isinstance(event, JobDone):
            is_full = event.job in self._full
            if is_full and self._last_ns is not None:
                self.durations.append(now_ns - self._last_ns)
            self._last_ns = now_ns if is_full else None
        for command in commands:
            if isinstance(command, SubmitJob):
                spec = command.spec
                if spec.task is Task.DECODE and len(spec.rows) == self._rows:
                    self._full.add(spec.job)


class _Outlet:
    """Counts endings; text is dropped, as no client is there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = 0
        self._problem = ""
        self._is_settled = False

    def begin(self, requests: int) -> None:
        self._open = requests

    def wait_settled(self) -> None:
        self._wait(lambda: self._is_settled)

    def wait_ended(self) -> None:
        self._wait(lambda: self._open == 0)

    def _wait(self, is_over: Any) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._problem) or is_over(), _TIMEOUT_S):
                self._problem = "the executor did not answer"
        if self._problem:
            raise RuntimeError(self._problem)

    def deliver(self, batch: Many[Delivery | Ending]) -> None:
        ended = [item for item in batch if isinstance(item, Ending)]
        if not ended:
            return
        with self._changed:
            self._open -= len(ended)
            bad = next((end for end in ended if end.reason is not FinishReason.LENGTH), None)
            if bad is not None:
                self._problem = f"a request ended with {bad.reason.value}: {bad.failure or bad.refusal}"
            self._changed.notify_all()

    def sessions_changed(self, sessions: Many[SessionView]) -> None:
        with self._changed:
            self._is_settled = all(view.state is GenerationState.READY for view in sessions)
            failed = next((view for view in sessions if view.state is GenerationState.FAILED), None)
            if failed is not None:
                self._problem = f"the session failed: {failed.failure}"
            self._changed.notify_all()

    def exit(self, code: int, reason: str) -> None:
        with self._changed:
            self._problem = f"exit {code}: {reason}"
            self._changed.notify_all()
