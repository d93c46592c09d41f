"""A whole answer that starts over: its first delivery says so, and what follows is the right answer from its prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from executor_rig import ExecutorRig
from fault_rig import Make, ended, ids_of, pass_time, right_tokens, settle

from calserve.core.commands import Emit
from calserve.core.events import Submit
from calserve.core.outcomes import FinishReason, Usage
from calserve.executor.messages import Delivery, Ending, Submission
from calserve.executor.sequence import GenerationParams, Sequence
from calserve.executor.telling import Telling
from calserve.runtime.sim import Fault, FaultPoint
from calserve.sampling.params import SamplingParams
from calserve.service.answer import Answer

NEW = 8


def submit(
    rig: ExecutorRig, name: str, salt: int = 3, *, whole: bool = True, sampling: SamplingParams | None = None
) -> None:
    ids, vocab = ids_of(rig, salt), rig.package.vocab_size
    params = GenerationParams(sampling or SamplingParams(temperature=0.0), NEW, vocab, min_tokens=NEW)
    event = Submit(name, "default", "m", len(ids), NEW, rig.clock(), is_whole=whole)
    rig.steps.take(Submission(event, Sequence(name, ids, params, rig.tokenizer)))


def listen(rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch) -> list[Delivery | Ending]:
    heard: list[Delivery | Ending] = []
    deliver = rig.outlet.deliver
    monkeypatch.setattr(
        type(rig.outlet), "deliver", lambda _self, batch: (heard.extend(batch), deliver.__func__(_self, batch))[0]
    )
    return heard


def gathered(heard: list[Delivery | Ending], name: str) -> Answer:
    answer = Answer()
    for item in heard:
        if item.request == name:
            answer.take(item)
    return answer


def text_of(tokens: list[int]) -> str:
    return "".join(chr(33 + token) for token in tokens)


@pytest.mark.parametrize("point", [FaultPoint.STATUS_CCU_EXCEPTION, FaultPoint.JOB_NEVER_COMPLETES])
def test_answer_lost_in_the_middle_is_delivered_anew_and_says_so_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, point: FaultPoint
) -> None:
    """The old sequence comes back with a job that failed, or never: both times a new one is made."""
    rig = make(Fault(point, at_visit=4))
    heard = listen(rig, monkeypatch)
    submit(rig, "a")
    settle(rig)
    told, ending = ended(rig, "a")
    right = right_tokens(rig, NEW)
    assert told.tokens == right[:3] + right  # what was delivered, before anybody dropped anything
    assert [item.is_anew for item in heard if isinstance(item, Delivery)] == [False] * 3 + [True] + [False] * 7
    assert (ending.reason, ending.usage) == (FinishReason.LENGTH, Usage(len(ids_of(rig)), NEW))
    assert "".join(gathered(heard, "a").text) == text_of(right)
    assert (rig.steps.telling.heard, rig.steps.telling.anew) == (set(), set())
    rig.assert_nothing_held()


def test_stream_lost_in_the_middle_ends_and_one_that_was_sent_nothing_starts_over_without_a_word(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(Fault(FaultPoint.STATUS_CCU_EXCEPTION, at_visit=4))
    heard = listen(rig, monkeypatch)
    submit(rig, "seen", whole=False)
    for _ in range(3):
        rig.retire_one()
    submit(rig, "unseen", 5, whole=False)
    settle(rig)
    assert ended(rig, "seen")[1].reason is FinishReason.DEVICE_FAULT
    told, ending = ended(rig, "unseen")
    assert (told.tokens, ending.reason) == (right_tokens(rig, NEW, 5), FinishReason.LENGTH)
    assert not any(item.is_anew for item in heard if isinstance(item, Delivery))


def test_sampled_answer_that_starts_over_is_the_one_it_would_have_been_with_its_log_probabilities(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingParams(temperature=0.9, seed=77, logprobs=1)
    answers = []
    for faults in ((), (Fault(FaultPoint.STATUS_CCU_EXCEPTION, at_visit=5),)):
        rig = make(*faults)
        heard = listen(rig, monkeypatch)
        submit(rig, "a", sampling=sampling)
        settle(rig)
        answers.append(gathered(heard, "a"))
        assert any(item.is_anew for item in heard if isinstance(item, Delivery)) == bool(faults)
    calm, again = answers
    assert (calm.text, calm.offsets, calm.usage) == (again.text, again.offsets, again.usage)
    assert [choice.token for choice in calm.choices] == [choice.token for choice in again.choices]
    assert len(again.choices) == NEW


def test_answer_cancelled_while_it_waits_to_start_over_ends_and_is_forgotten(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(Fault(FaultPoint.STATUS_CCU_EXCEPTION, at_visit=4))
    submit(rig, "a")
    while not rig.orders:
        rig.retire_one()
    rig.cancel("a")
    settle(rig)
    assert ended(rig, "a")[1].reason is FinishReason.CANCELLED
    assert (rig.steps.telling.heard, rig.steps.telling.anew) == (set(), set())
    rig.outlet.told.clear()
    submit(rig, "a")  # the name is free again, and nothing of the first one's is left
    heard = listen(rig, monkeypatch)
    settle(rig)
    assert "".join(gathered(heard, "a").text) == text_of(right_tokens(rig, NEW))
    assert not any(item.is_anew for item in heard if isinstance(item, Delivery))
    assert not pass_time(rig)


def test_delivery_of_the_first_try_that_core_names_in_the_turn_of_the_restart_is_told_no_more() -> None:
    """Core orders: the job of the second try first, then the text that the last job of the first one gave."""
    telling = Telling()
    first, late, new = (Delivery("x", text, (ord(text),)) for text in "abc")
    assert telling.batch([Emit("x", 7, 0)], {(7, 0): first}) == [first]
    telling.begins_anew("x", 9)
    assert telling.batch([Emit("x", 8, 0)], {(8, 0): late}) == []
    assert telling.batch([Emit("x", 9, 0)], {(9, 0): new}) == [replace(new, is_anew=True)]


def test_first_delivery_ever_that_comes_in_the_turn_of_the_restart_is_not_told_twice() -> None:
    telling = Telling()
    late, new = (Delivery("x", text, (ord(text),)) for text in "bc")
    telling.begins_anew("x", 9)
    assert telling.batch([Emit("x", 8, 0)], {(8, 0): late}) == []
    assert telling.batch([Emit("x", 9, 0)], {(9, 0): new}) == [new]
