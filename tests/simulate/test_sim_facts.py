"""The device's own account: every fact, in order, at its time, and nothing without a listener."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sim_rig import SECOND, SMALL, Rig, prompt_of, row_of

from calserve.core.commands import ResetScope
from calserve.runtime.contract import LoadOptions
from calserve.runtime.sim import Fault, FaultPlan, FaultPoint, SimBoard, SimDevice, VirtualClock, sim_package
from calserve.runtime.sim.facts import DeviceFact, FactKind, RowFact
from calserve.runtime.sim.oracle import greedy_tokens

# See test_sim_time: launch 20,000; decode_b4 H2D 10,007, compute 11,000,000, D2H 10,100 (all ns).
READ_AT, KV_AT, DONE_AT = 30_007, 11_030_007, 11_040_107


def listened(*faults: Fault, max_in_flight: int = 1) -> tuple[Rig, list[DeviceFact]]:
    facts: list[DeviceFact] = []
    device = SimDevice(SMALL, VirtualClock(), FaultPlan(faults))
    device.listener = facts.append
    return Rig.on(device=device, max_in_flight=max_in_flight), facts


def kinds(facts: list[DeviceFact]) -> list[FactKind]:
    return [fact.kind for fact in facts]


def only(facts: list[DeviceFact], kind: FactKind) -> list[DeviceFact]:
    return [fact for fact in facts if fact.kind is kind]


def test_job_tells_every_step_in_order_and_at_its_time() -> None:
    rig, facts = listened()
    assert kinds(facts) == [FactKind.CONFIGURED]
    assert (facts[0].session, facts[0].generation, facts[0].chips, facts[0].at_ns) == ("s", 1, (0,), 0)
    now = rig.board.device.clock.now_ns()
    spec = rig.spec("decode_b4", [row_of(2, 0, 1)])
    ticket, _ = rig.start(spec, [[5]])
    rig.finish(ticket)
    row = RowFact(lane=2, slot=0, tokens=(5,), positions=(0,), length=1)
    told = [(fact.at_ns - now, fact.kind, fact.rows) for fact in facts[1:]]
    assert told == [
        (0, FactKind.SUBMITTED, ()),
        (READ_AT, FactKind.INPUTS_READ, (row,)),
        (KV_AT, FactKind.KV_WRITTEN, (row,)),
        (DONE_AT, FactKind.OUTPUT_WRITTEN, ()),
        (DONE_AT, FactKind.RETIRED, ()),
        (DONE_AT, FactKind.DELIVERED, ()),
    ]
    assert all((f.ticket, f.session, f.generation, f.chips) == (ticket.number, "s", 1, (0,)) for f in facts[1:])
    assert [fact.spec for fact in facts[1:]] == [spec, None, None, None, None, None]
    assert [(fact.code, fact.detail) for fact in facts[-2:]] == [(0, "done"), (0, "")]


def test_inputs_read_are_what_the_dma_found_not_what_the_job_says() -> None:
    rig, facts = listened()
    rig.board.device.clock.auto_advance = False
    spec = rig.spec("prefill_b1", [row_of(3, 0, 3)])
    _, buffers = rig.start(spec, [[7, 8, 9]])
    buffers.host("tokens")[0, 1] = 40
    rig.board.device.clock.advance(SECOND)
    read = only(facts, FactKind.INPUTS_READ)[0]
    assert read.rows == (RowFact(3, 0, (7, 40, 9), (0, 1, 2), 3),)


def test_ccu_exception_tells_which_slots_it_spoiled_and_no_output() -> None:
    rig, facts = listened(Fault(FaultPoint.STATUS_CCU_EXCEPTION, at_visit=2))
    rig.prefill(0, prompt_of(20))
    facts.clear()
    ticket, _ = rig.start(rig.spec("decode_b4", [row_of(0, 20, 1)]), [[1]])
    rig.session.wait(ticket, SECOND)
    assert kinds(facts)[2:] == [FactKind.FAULT, FactKind.KV_WRITTEN, FactKind.RETIRED, FactKind.DELIVERED]
    spoiled = only(facts, FactKind.KV_WRITTEN)[0]
    # blocks of 16 slots: the job wrote slot 20, so 16..20 are undefined
    assert (spoiled.detail, spoiled.rows) == ("spoiled", (RowFact(0, 16, (-2,) * 5, (-2,) * 5, 21),))
    assert only(facts, FactKind.FAULT)[0].detail == "status_ccu_exception"
    assert only(facts, FactKind.RETIRED)[0].detail == "done_ccu_exception"


@pytest.mark.parametrize(("scope", "lands"), [(ResetScope.SESSION, True), (ResetScope.CONFIGURATION, False)])
def test_late_job_tells_its_writes_after_a_reset_only_where_they_land(scope: ResetScope, lands: bool) -> None:
    rig, facts = listened(Fault(FaultPoint.COMPLETION_LATE))
    ticket, _ = rig.start(rig.spec("prefill_b1", [row_of(0, 0, 9)]), [prompt_of(9)])
    assert rig.session.wait(ticket, SECOND)[0] == 13
    facts.clear()
    assert rig.board.reset(scope, "s") == 0
    assert [(fact.kind, fact.detail, fact.session, fact.chips) for fact in facts] == [
        (FactKind.RESET, scope.value, "", (0,) if scope is ResetScope.SESSION else (0, 1)),
        (FactKind.RELEASED, "", "s", (0,)),
    ]
    rig.configure(2)
    facts.clear()
    rig.board.device.clock.advance(60 * SECOND)
    written = [FactKind.KV_WRITTEN, FactKind.OUTPUT_WRITTEN] if lands else []
    assert kinds(facts) == [*written, FactKind.RETIRED]
    assert {(fact.ticket, fact.generation) for fact in facts} == {(ticket.number, 1)}
    facts.clear()
    other, _ = rig.start(rig.spec("prefill_b1", [row_of(1, 0, 9)]), [prompt_of(9)])
    rig.session.wait(other, SECOND)
    stray = only(facts, FactKind.DELIVERED)[0]
    assert (stray.ticket, stray.generation, stray.detail) == (ticket.number, 1, "stray")


def test_reset_tells_the_end_of_each_job_it_kills() -> None:
    rig, facts = listened(Fault(FaultPoint.JOB_NEVER_COMPLETES), max_in_flight=2)
    for lane in (0, 1):
        rig.start(rig.spec("decode_b4", [row_of(lane, 0, 1)]), [[3]])
    facts.clear()
    rig.board.device.clock.auto_advance = False  # else the second job ends while the reset takes its time
    assert rig.board.reset(ResetScope.CCU, "s") == 0
    told = [(fact.kind, fact.code, fact.detail) for fact in facts]
    assert told == [(FactKind.RESET, 0, "ccu"), *[(FactKind.RETIRED, 18, "done_ccu_exception")] * 2]


def test_double_completion_is_told_as_stray_the_second_time() -> None:
    rig, facts = listened(Fault(FaultPoint.COMPLETION_DOUBLE))
    first, _ = rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[3]])
    rig.finish(first)
    second, _ = rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[3]])
    assert rig.session.wait(second, SECOND)[1].ticket == first
    rig.finish(second)
    told = [(fact.ticket, fact.detail) for fact in only(facts, FactKind.DELIVERED)]
    assert told == [(first.number, ""), (first.number, "stray"), (second.number, "")]


def test_end_of_the_host_is_told_once_with_what_it_lets_go_and_the_device_goes_on() -> None:
    rig, facts = listened()
    rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[3]])
    facts.clear()
    rig.board.close()
    rig.board.device.host_ended()
    assert kinds(facts) == [FactKind.HOST_ENDED, FactKind.RELEASED]
    rig.board.device.clock.advance(SECOND)
    assert kinds(facts)[-1] is FactKind.RETIRED


def test_close_of_a_session_tells_its_release_once() -> None:
    rig, facts = listened()
    assert rig.session.close() == 0
    assert rig.session.close() == 0
    assert kinds(facts) == [FactKind.CONFIGURED, FactKind.RELEASED]


def test_faults_of_host_calls_are_told_too() -> None:
    rig, facts = listened(Fault(FaultPoint.KV_CANNOT_ALLOCATE), Fault(FaultPoint.SUBMIT_BUSY, at_visit=2))
    facts.clear()
    rig.session.kv.can_allocate(1)
    rig.session.kv.can_allocate(1)
    assert [(fact.kind, fact.detail) for fact in facts] == [(FactKind.FAULT, "kv_cannot_allocate")]


def test_listener_taken_away_hears_nothing_more() -> None:
    rig, facts = listened(Fault(FaultPoint.KV_CANNOT_ALLOCATE))
    rig.board.device.listener = None
    facts.clear()
    rig.session.kv.can_allocate(1)
    rig.prefill(0, prompt_of(3))
    assert facts == []


def test_facts_and_tokens_are_the_same_with_and_without_a_listener() -> None:
    rig, facts = listened()
    assert rig.generate(prompt_of(9), 6) == Rig.on().generate(prompt_of(9), 6) == greedy_tokens(prompt_of(9), 6, 64)
    assert len(only(facts, FactKind.DELIVERED)) == 6


def test_ready_is_exactly_when_wait_would_not_time_out() -> None:
    clock = VirtualClock()
    rig = Rig.on(clock=clock)
    clock.auto_advance = False
    now = clock.now_ns()
    ticket, _ = rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[3]])
    clock.advance(DONE_AT - 1)
    assert not rig.session.is_ready(ticket)
    clock.advance(1)
    assert rig.session.is_ready(ticket)
    assert clock.now_ns() == now + DONE_AT
    assert rig.session.wait(ticket, 0)[0] == 0
    assert rig.session.is_ready(ticket)  # wait says code 4 at once
    assert rig.session.wait(ticket, 0) == (4, None)


def test_ready_visits_no_fault_point() -> None:
    plan = FaultPlan([Fault(FaultPoint.WAIT_TIMEOUT)])
    rig = Rig.on(faults=plan)
    ticket, _ = rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[3]])
    rig.session.drain(SECOND)
    assert rig.session.is_ready(ticket)
    assert plan.visits == {}


def test_ready_of_a_late_job_comes_with_its_end_and_makes_the_next_generation_ready_for_the_stray() -> None:
    rig, _ = listened(Fault(FaultPoint.COMPLETION_LATE))
    late, _ = rig.start(rig.spec("prefill_b1", [row_of(0, 0, 9)]), [prompt_of(9)])
    rig.session.wait(late, SECOND)
    old = rig.session
    assert rig.board.reset(ResetScope.CONFIGURATION, "s") == 0
    assert not old.is_ready(late)
    rig.configure(2)
    rig.board.device.clock.advance(60 * SECOND)
    assert old.is_ready(late)
    rig.board.device.clock.auto_advance = False
    ticket, _ = rig.start(rig.spec("prefill_b1", [row_of(0, 0, 9)]), [prompt_of(9)])
    assert rig.session.is_ready(ticket)
    assert rig.session.wait(ticket, 0)[1].ticket == late
    assert not rig.session.is_ready(ticket)


def test_ready_on_a_lost_device_because_wait_says_so_at_once() -> None:
    rig, _ = listened(Fault(FaultPoint.DEVICE_LOST))
    ticket, _ = rig.start(rig.spec("prefill_b1", [row_of(0, 0, 9)]), [prompt_of(9)])
    assert not rig.session.is_ready(ticket)
    rig.board.device.clock.advance(SECOND)
    assert rig.session.is_ready(ticket)
    assert rig.session.wait(ticket, 0) == (18, None)


def test_sibling_sessions_are_told_apart_by_name_and_chips() -> None:
    facts: list[DeviceFact] = []
    profile = replace(SMALL)
    board = SimBoard(profile)
    board.device.listener = facts.append
    for chip in (0, 1):
        board.configure(sim_package(profile), LoadOptions(chips=(chip,)), f"chip{chip}", 1)
    assert board.reset(ResetScope.CHIP, "chip1") == 0
    told = [(fact.kind, fact.session, fact.chips) for fact in facts]
    assert told == [
        (FactKind.CONFIGURED, "chip0", (0,)),
        (FactKind.CONFIGURED, "chip1", (1,)),
        (FactKind.RESET, "", (1,)),
        (FactKind.RELEASED, "chip1", (1,)),
    ]


def test_submit_of_memory_that_a_job_holds_is_refused_and_told() -> None:
    rig, facts = listened(max_in_flight=2)
    rig.board.device.clock.auto_advance = False
    spec = rig.spec("decode_b4", [row_of(0, 0, 1)])
    _, buffers = rig.start(spec, [[5]])
    facts.clear()
    code, ticket = rig.session.submit(replace(spec, job=spec.job + 1), buffers)
    assert (int(code), ticket) == (17, None)
    assert [(fact.kind, fact.session, fact.generation) for fact in facts] == [(FactKind.HELD, "s", 1)]
