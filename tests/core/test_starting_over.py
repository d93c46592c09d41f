"""A request whose client sees nothing before the end may start over, once, also after it had tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_rig import MS, Rig, lane_facts, paged_facts, submits

from calserve.core.commands import Configure, Emit, Warm
from calserve.core.config import SchedulerConfig
from calserve.core.events import ResetDone, Submit, Unload
from calserve.core.fairness import SCALE
from calserve.core.outcomes import FaultClass, Usage

F = FaultClass


def ask(rig: Rig, name: str, prompt: int = 8, new: int = 4, deadline: int | None = None, *, whole: bool = True) -> None:
    rig.send(Submit(name, "t", "m", prompt, new, rig.now, deadline, is_whole=whole))


def begun(*, whole: bool = True, new: int = 4, deadline: int | None = None) -> Rig:
    """`r1` has two tokens of its answer, and a job of it is on the board."""
    rig = Rig().up()
    ask(rig, "r1", new=new, deadline=deadline, whole=whole)
    for _ in range(2):
        rig.done()
    assert [emit.request for emit in rig.emitted] == ["r1", "r1"]
    return rig


def test_whole_answer_whose_generation_is_lost_in_the_middle_starts_over_and_counts_only_what_is_given() -> None:
    rig = begun()
    rig.lifecycle(rig.failed(F.DEVICE))
    assert "r1" not in rig.finished
    row = rig.spec.rows[0]
    assert (row.request, row.first_position, row.token_count, rig.spec.generation) == ("r1", 0, 8, 2)
    for _ in range(4):
        rig.done()
    assert rig.reason("r1") == "length"
    assert rig.finished["r1"].usage == Usage(8, 4)
    assert len(rig.emitted) == 6  # two of the first try, and all four of the second
    assert (rig.counters["restarted_requests"], rig.counters["restarted_whole_answers"]) == (1, 1)


def test_stream_in_the_same_place_ends_with_the_fault() -> None:
    rig = begun(whole=False)
    rig.lifecycle(rig.failed(F.DEVICE))
    assert rig.reason("r1") == "device_fault"
    assert rig.finished["r1"].usage == Usage(8, 2)
    assert "restarted_requests" not in rig.counters


def test_whole_answer_starts_over_once() -> None:
    rig = begun()
    rig.lifecycle(rig.failed(F.DEVICE))
    rig.done()
    rig.lifecycle(rig.failed(F.DEVICE))
    assert rig.reason("r1") == "device_fault"
    assert rig.finished["r1"].usage == Usage(8, 1)
    assert rig.counters["restarted_requests"] == 1


def test_whole_answer_at_rest_when_its_session_recovers_starts_over_too() -> None:
    """The job that fails is another's prefill; with it goes the generation."""
    rig = Rig(facts=lane_facts()).up()
    ask(rig, "r1", new=6)
    rig.done()
    ask(rig, "r2", new=6)
    while rig.rows != ["r2"]:
        rig.done()
    assert {emit.request for emit in rig.emitted} == {"r1"}
    rig.lifecycle(rig.failed(F.DEVICE))
    while rig.jobs:
        rig.done()
    ends = {name: (rig.reason(name), rig.finished[name].usage.completion_tokens) for name in ("r1", "r2")}
    assert ends == {"r1": ("length", 6), "r2": ("length", 6)}
    assert rig.counters["restarted_whole_answers"] == 1


@pytest.mark.parametrize(("now", "reason"), [(499 * MS, "length"), (500 * MS, "deadline")])
def test_whole_answer_is_not_begun_again_past_its_deadline(now: int, reason: str) -> None:
    rig = begun(deadline=500 * MS)
    rig.at(now).lifecycle(rig.failed(F.DEVICE))
    while rig.jobs:
        rig.done()
    assert rig.reason("r1") == reason


def test_whole_answer_that_waits_to_start_over_ends_by_its_deadline_with_nothing_used() -> None:
    rig = begun(deadline=500 * MS)
    rig.failed(F.DEVICE)  # a reset is ordered and not answered
    rig.tick(500 * MS)
    assert rig.reason("r1") == "deadline"
    assert rig.finished["r1"].usage == Usage(8, 0)


@pytest.mark.parametrize("kind", [F.ARTIFACT, F.COMPATIBILITY])
def test_whole_answer_whose_package_does_not_come_back_ends(kind: FaultClass) -> None:
    rig = begun()
    rig.lifecycle(rig.failed(kind))
    assert rig.reason("r1") == "internal"
    assert "restarted_requests" not in rig.counters


def test_whole_answer_is_refused_when_the_recovery_it_waits_for_ends_in_an_unload() -> None:
    rig = begun()
    rig.failed(F.DEVICE)
    rig.send(Unload("s", 900 * MS))
    assert rig.refusal("r1") == ("model_draining", 0, 0)


def test_whole_answer_that_starts_over_on_a_sibling_does_not_do_so_again() -> None:
    rig = Rig(facts=paged_facts(lanes=2)).up("a").up("b")
    ask(rig, "r1")
    rig.done()
    assert len(submits(rig.failed(F.DEVICE))) == 1
    assert (rig.spec.session, rig.spec.rows[0].first_position) == ("b", 0)
    rig.done()
    assert isinstance(rig.emitted[-1], Emit)
    rig.failed(F.DEVICE)
    assert rig.reason("r1") == "device_fault"


def test_first_try_is_paid_for_by_who_had_it() -> None:
    """Prompt 8, and decode rows at 4 each: the try that was lost cost 8 + 4; the row that was lost had no result."""
    rig = Rig(config=SchedulerConfig(decode_cost_weight=4)).up()
    ask(rig, "r1", new=4)
    rig.done()
    rig.done()
    tenants = rig.engine.supervisor.sessions["s"].worker.roster.clock.tenants
    assert tenants["t"].virtual == (8 + 4 * 4) * SCALE  # in advance, for all four
    rig.failed(F.DEVICE)
    spent = tenants["t"].virtual
    assert spent == (8 + 4) * SCALE
    rig.send(ResetDone("s", 1))
    rig.send(rig.answer(Configure("s", 2, "p")))
    rig.send(rig.answer(Warm("s", 2)))
    assert tenants["t"].virtual == spent + (8 + 4 * 4) * SCALE


def test_transient_failure_of_a_job_restarts_a_whole_answer_in_its_own_generation() -> None:
    rig = begun()
    rig.lifecycle(rig.failed(F.TRANSIENT))
    rig.tick(1000 * MS)
    assert (rig.spec.generation, rig.spec.rows[0].first_position) == (1, 0)
    while rig.jobs:
        rig.done()
    assert rig.finished["r1"].usage == Usage(8, 4)


def test_submit_is_printed_with_what_its_client_sees() -> None:
    event = Submit("r", "t", "m", 1, 1, 0)
    assert not event.is_whole
    assert "is_whole=True" in repr(replace(event, is_whole=True))


def test_fault_of_the_request_itself_never_restarts_it() -> None:
    rig = begun()
    rig.lifecycle(rig.failed(F.REQUEST))
    assert rig.reason("r1") == "internal"
