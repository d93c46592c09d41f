"""The real threads over a simulated board on wall time: they serve, they end, and what breaks ends the service."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import pytest
from executor_rig import CollectingOutlet, byte_tokenizer
from harness import prompt

from calserve.core.config import SchedulerConfig
from calserve.core.engine import Engine
from calserve.core.events import Cancel, CancelCause, Load, Shutdown, Submit
from calserve.core.outcomes import FinishReason
from calserve.core.snapshot import EngineSnapshot, SessionView
from calserve.core.states import GenerationState
from calserve.executor.executor import EXIT_BROKEN_INVARIANT, BoardExecutor, ExecutorParts
from calserve.executor.messages import Delivery, Ending, Inspect, Submission
from calserve.executor.sequence import GenerationParams, Sequence
from calserve.runtime.contract import BoardPackage, LoadOptions
from calserve.runtime.sim import SimBoard, WallClock, sim_package
from calserve.runtime.sim.oracle import greedy_tokens
from calserve.sampling.params import SamplingParams

PATIENCE_S = 60.0


@dataclass(slots=True)
class WaitingOutlet(CollectingOutlet):
    """Collects like its base, and wakes whoever waits for readiness, an ending or the exit."""

    ready: threading.Event = field(default_factory=threading.Event)
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    exited: threading.Event = field(default_factory=threading.Event)

    def deliver(self, batch: Many[Delivery | Ending]) -> None:
        CollectingOutlet.deliver(self, batch)
        for item in batch:
            if isinstance(item, Ending):
                self.ended.release()

    def sessions_changed(self, sessions: Many[SessionView]) -> None:
        CollectingOutlet.sessions_changed(self, sessions)
        if all(view.state is GenerationState.READY for view in sessions):
            self.ready.set()

    def exit(self, code: int, reason: str) -> None:
        CollectingOutlet.exit(self, code, reason)
        self.exited.set()


@dataclass(slots=True)
class Threaded:
    executor: BoardExecutor
    outlet: WaitingOutlet
    package: BoardPackage

    def submit(self, request: str, ids: list[int], new_tokens: int) -> None:
        params = GenerationParams(
            SamplingParams(temperature=0.0), new_tokens, self.package.vocab_size, min_tokens=new_tokens
        )
        event = Submit(request, "default", "m", len(ids), new_tokens, time.monotonic_ns())
        sequence = Sequence(request, ids, params, byte_tokenizer(self.package.vocab_size))
        self.executor.post(Submission(event, sequence))

    def wait_endings(self, count: int) -> None:
        for _ in range(count):
            assert self.outlet.ended.acquire(timeout=PATIENCE_S)


@pytest.fixture
def threaded() -> Iterator[Threaded]:
    package, outlet = sim_package(), WaitingOutlet()
    board = SimBoard(clock=WallClock())
    executor = BoardExecutor(
        ExecutorParts(
            board,
            Engine(SchedulerConfig()),
            outlet,
            lambda _hash: package,
            {"s0": LoadOptions(chips=(0, 1))},
            time.monotonic_ns,
        )
    )
    executor.start()
    executor.post(Load("s0", "m", package.hash))
    assert outlet.ready.wait(PATIENCE_S)
    yield Threaded(executor, outlet, package)
    executor.close()
    board.close()


@pytest.mark.slow
def test_threads_serve_requests_tell_each_once_and_end_with_the_shutdown(threaded: Threaded) -> None:
    prompts = {f"r{i}": prompt(threaded.package, 1 + i, salt=i) for i in range(24)}
    for name, ids in prompts.items():
        threaded.submit(name, ids, 6)
    for name in list(prompts)[::5]:
        threaded.executor.post(Cancel(name, CancelCause.CLIENT_GONE))
    threaded.wait_endings(len(prompts))
    for name, ids in prompts.items():
        told = threaded.outlet.told[name]
        assert told.terminals == 1
        right = greedy_tokens(ids, 6, vocab=threaded.package.vocab_size)
        assert told.tokens == right[: len(told.tokens)]
        if told.ending is not None and told.ending.reason is FinishReason.LENGTH:
            assert told.tokens == right
    threaded.executor.post(Shutdown(time.monotonic_ns()))
    assert threaded.outlet.exited.wait(PATIENCE_S)
    assert [code for code, _ in threaded.outlet.exits] == [0]
    assert threaded.executor.close()


@pytest.mark.slow
def test_threads_answer_a_question_with_the_engines_own_counts(threaded: Threaded) -> None:
    answered, answers = threading.Event(), []

    def reply(snapshot: EngineSnapshot) -> None:
        answers.append(snapshot)
        answered.set()

    threaded.submit("one", prompt(threaded.package, 3), 2)
    threaded.wait_endings(1)
    threaded.executor.post(Inspect(reply))
    assert answered.wait(PATIENCE_S)
    assert answers[0].counters["finished_length"] == 1


@pytest.mark.slow
def test_broken_invariant_on_a_thread_ends_the_service_loudly(
    threaded: Threaded, caplog: pytest.LogCaptureFixture
) -> None:
    threaded.executor.post("no event at all")  # type: ignore[arg-type]
    assert threaded.outlet.exited.wait(PATIENCE_S)
    assert threaded.outlet.exits[0][0] == EXIT_BROKEN_INVARIANT
    assert "engine thread stopped" in caplog.text
