"""The real threads over a simulated board on wall time: they serve, they end, and what breaks ends the service."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from harness import prompt
from threaded_rig import PATIENCE_S, Threaded, threaded_rig

from calserve.core.events import Cancel, CancelCause, Shutdown
from calserve.core.outcomes import FinishReason
from calserve.core.snapshot import EngineSnapshot
from calserve.executor.executor import EXIT_BROKEN_INVARIANT
from calserve.executor.messages import Inspect
from calserve.runtime.sim.oracle import greedy_tokens


@pytest.fixture
def threaded() -> Iterator[Threaded]:
    with threaded_rig() as made:
        yield made


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


@pytest.mark.slow
def test_threads_show_how_many_sets_of_buffers_are_out(threaded: Threaded) -> None:
    assert threaded.executor.buffer_counts() == (0, 0)
    threaded.submit("one", prompt(threaded.package, 3), 2)
    threaded.wait_endings(1)
    answered = threading.Event()
    threaded.executor.post(Inspect(lambda _snapshot: answered.set()))  # the turn that told of the end is over
    assert answered.wait(PATIENCE_S)
    assert threaded.executor.buffer_counts() == (0, 0)
