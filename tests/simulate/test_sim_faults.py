"""Every fault point does what its name says, when the plan says; resets destroy what their table declares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sim_rig import LANES, SECOND, SMALL, Rig, prompt_of, row_of

from calserve.core.commands import ResetScope
from calserve.core.job import Bank
from calserve.runtime.contract import LoadOptions, StatusKind
from calserve.runtime.sim import PROFILES, Fault, FaultPlan, FaultPoint, SimBoard, random_plan, sim_package
from calserve.runtime.sim.oracle import greedy_tokens

RIGHT = greedy_tokens(prompt_of(9), 8, 64)


def faulty(*faults: Fault, max_in_flight: int = 1) -> Rig:
    return Rig.on(faults=FaultPlan(faults), max_in_flight=max_in_flight)


def decode_spec(rig: Rig, lane: int = 0, bank: Bank = Bank.AUTO):
    return rig.spec("decode_b4", [row_of(lane, 9, 1)], bank)


def start_decode(rig: Rig, lane: int = 0):
    return rig.start(decode_spec(rig, lane), [[greedy_tokens(prompt_of(9, lane), 1, 64)[0]]])


@pytest.mark.parametrize(
    ("point", "code"),
    [(FaultPoint.SUBMIT_BUSY, 17), (FaultPoint.SUBMIT_UNAVAILABLE, 18), (FaultPoint.SUBMIT_UNSUPPORTED, 27)],
)
def test_submit_fault_gives_its_code_and_starts_nothing(point: FaultPoint, code: int) -> None:
    rig = faulty(Fault(point, at_visit=2))
    assert rig.prefill(0, prompt_of(9)) == RIGHT[0]
    spec = decode_spec(rig)
    buffers = rig.buffers(spec, [[RIGHT[0]]])
    assert rig.session.submit(spec, buffers) == (code, None)
    assert rig.board.counters().left == 0
    code, ticket = rig.session.submit(spec, buffers)
    assert code == 0
    rig.finish(ticket)
    assert rig.best(spec, buffers) == [RIGHT[1]]


def test_fault_value_replaces_the_code() -> None:
    rig = faulty(Fault(FaultPoint.SUBMIT_BUSY, value=28))
    spec = decode_spec(rig)
    assert rig.session.submit(spec, rig.buffers(spec, [[1]])) == (28, None)


def test_wait_timeout_comes_while_the_job_still_ends_well() -> None:
    rig = faulty(Fault(FaultPoint.WAIT_TIMEOUT, times=2))
    ticket, _ = start_decode(rig)
    assert rig.session.wait(ticket, SECOND) == (13, None)
    assert rig.session.wait(ticket, SECOND) == (13, None)
    rig.finish(ticket)


def test_ccu_exception_comes_with_code_zero_and_leaves_the_kv_block_undefined() -> None:
    rig = faulty(Fault(FaultPoint.STATUS_CCU_EXCEPTION, at_visit=2))
    rig.prefill(0, prompt_of(9))
    ticket, buffers = start_decode(rig)
    code, status = rig.session.wait(ticket, SECOND)
    assert (code, status.status) == (0, StatusKind.DONE_CCU_EXCEPTION)
    assert np.isnan(buffers.output("logits")).all()  # no D2H
    # the same step again overwrites slot 9 only; slots 0-8 of its block of 16 stay undefined
    assert rig.decode(4, {0: (RIGHT[0], 9)})[0] != RIGHT[1]
    assert rig.prefill(0, prompt_of(9)) == RIGHT[0]


def test_nan_logits_fill_every_row_of_that_job_only() -> None:
    rig = faulty(Fault(FaultPoint.LOGITS_NAN))
    ticket, buffers = start_decode(rig)
    rig.finish(ticket)
    assert np.isnan(buffers.output("logits")).all()
    ticket, buffers = start_decode(rig)
    rig.finish(ticket)
    assert np.isfinite(buffers.output("logits")).all()


def test_nan_logits_are_nan_in_bfloat16_too() -> None:
    rig = Rig.on(replace(SMALL, logits_dtype="bfloat16"), faults=FaultPlan([Fault(FaultPoint.LOGITS_NAN)]))
    ticket, buffers = start_decode(rig)
    rig.finish(ticket)
    assert np.isnan((buffers.output("logits").astype(np.uint32) << 16).view(np.float32)).all()


def test_short_output_is_half_a_row_and_the_view_says_so_until_the_reset() -> None:
    rig = faulty(Fault(FaultPoint.OUTPUT_SHORT))
    ticket, buffers = start_decode(rig)
    rig.finish(ticket)
    assert buffers.output("logits").shape == (4, 32)
    assert np.isnan(buffers.host("logits")[:, 32:]).all()
    assert buffers.reset() == 0
    assert buffers.output("logits").shape == (4, 64)


@pytest.mark.parametrize(("tile", "shape"), [(16, (2, 4, 16)), (64, (1, 4, 32))])
def test_short_output_of_a_tiled_graph_is_half_its_tiles(tile: int, shape: tuple[int, ...]) -> None:
    rig = Rig.on(replace(SMALL, logits_tile=tile), faults=FaultPlan([Fault(FaultPoint.OUTPUT_SHORT)]))
    ticket, buffers = start_decode(rig)
    rig.finish(ticket)
    assert buffers.output("logits").shape == shape


def test_infinite_logit_stands_in_every_row_and_nothing_else_is_touched() -> None:
    rig = faulty(Fault(FaultPoint.LOGITS_INF))
    ticket, buffers = start_decode(rig)
    rig.finish(ticket)
    logits = buffers.output("logits")
    assert np.isinf(logits[:, 0]).all()
    assert np.isfinite(logits[:, 1:]).all()


@pytest.mark.parametrize(("value", "named"), [(0, 6), (2, 2)])
def test_misnamed_completion_names_another_generation(value: int, named: int) -> None:
    rig = Rig.on(faults=FaultPlan([Fault(FaultPoint.COMPLETION_MISNAMED, value=value)]), generation=5)
    ticket, _ = rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[3]])
    code, status = rig.session.wait(ticket, SECOND)
    assert (code, status.ticket, status.generation) == (0, ticket, named)


def test_lost_undo_leaves_the_slice_so_that_the_reset_is_refused_until_it_is_undone() -> None:
    rig = faulty(Fault(FaultPoint.UNDO_LOST))
    _, buffers = rig.session.allocate("prefill_b1", Bank.AUTO)
    assert buffers.undo_slices() == 0  # nothing sliced, nothing to lose: not a visit
    assert buffers.slice("tokens", (1, 9)) == 0
    assert buffers.undo_slices() == 0
    assert buffers.reset() == 4
    assert buffers.undo_slices() == 0
    assert buffers.reset() == 0


def test_wait_that_fails_with_a_code_leaves_the_device_writing_the_output_later() -> None:
    rig = faulty(Fault(FaultPoint.WAIT_TIMEOUT, value=24))
    ticket, buffers = start_decode(rig)
    assert rig.session.wait(ticket, SECOND) == (24, None)  # the host may think it over: it is not
    assert buffers.reset() == 17
    assert np.isnan(buffers.output("logits")).all()
    rig.board.device.clock.advance(SECOND)
    assert np.isfinite(buffers.output("logits")).all()
    rig.finish(ticket)


def test_job_that_never_completes_is_ended_by_a_reset_with_code_18() -> None:
    rig = faulty(Fault(FaultPoint.JOB_NEVER_COMPLETES))
    ticket, buffers = start_decode(rig)
    assert rig.session.wait(ticket, 3600 * SECOND) == (13, None)
    assert rig.session.drain(SECOND) == 13
    assert rig.board.counters().left == 1
    assert buffers.reset() == 17  # the device holds it
    assert rig.board.reset(ResetScope.CCU, "s") == 0
    code, status = rig.session.wait(ticket, 0)
    assert (code, status.status) == (18, StatusKind.DONE_CCU_EXCEPTION)
    assert rig.board.counters().left == 0
    assert buffers.reset() == 0
    assert rig.generate(prompt_of(9), 8) == RIGHT


# H2D ends 30,007 ns after the submit, compute 11,030,007, D2H 11,040,107.
@pytest.mark.parametrize(("after_ns", "is_kept"), [(10_000, True), (1_000_000, False), (11_035_000, True)])
def test_reset_in_mid_compute_leaves_the_jobs_kv_block_undefined(after_ns: int, is_kept: bool) -> None:
    rig = Rig.on()
    rig.prefill(0, prompt_of(9))
    rig.board.device.clock.auto_advance = False
    start_decode(rig)
    rig.board.device.clock.advance(after_ns)
    assert rig.board.reset(ResetScope.CCU, "s") == 0
    rig.board.device.clock.auto_advance = True
    assert (rig.decode(4, {0: (RIGHT[0], 9)})[0] == RIGHT[1]) is is_kept


def test_late_completion_comes_value_ns_late() -> None:
    rig = faulty(Fault(FaultPoint.COMPLETION_LATE, value=7 * SECOND))
    ticket, _ = start_decode(rig)
    assert rig.session.wait(ticket, 7 * SECOND) == (13, None)
    assert rig.finish(ticket).device_ns == 7 * SECOND + 11_000_000


def late_prefill_of_lane_0(scope: ResetScope) -> tuple[Rig, object, object]:
    """Lane 0's prefill is stuck; the board is reset; generation 2 has the lane with another prompt."""
    rig = faulty(Fault(FaultPoint.COMPLETION_LATE))
    ticket, buffers = rig.start(rig.spec("prefill_b1", [row_of(0, 0, 9)]), [prompt_of(9, 1)])
    assert rig.session.wait(ticket, SECOND)[0] == 13
    assert rig.board.reset(scope, "s") == 0
    rig.configure(2)
    assert rig.prefill(0, prompt_of(9)) == RIGHT[0]
    return rig, ticket, buffers


def test_late_completion_after_a_reset_carries_the_old_generation_to_the_new_session() -> None:
    rig, stale, buffers = late_prefill_of_lane_0(ResetScope.CONFIGURATION)
    rig.board.device.clock.advance(60 * SECOND)
    ticket, _ = start_decode(rig)
    code, status = rig.session.wait(ticket, SECOND)
    assert (code, status.status) == (0, StatusKind.DONE)
    assert (status.ticket, status.generation) == (stale, 1)
    assert rig.finish(ticket).generation == 2
    assert np.isnan(buffers.output("logits")).all()  # this reset stops DMA


def test_late_job_writes_into_a_reused_lane_unless_the_reset_stops_writes() -> None:
    damaged, _, buffers = late_prefill_of_lane_0(ResetScope.SESSION)
    damaged.board.device.clock.advance(60 * SECOND)
    assert buffers.output("logits").any()
    spec = decode_spec(damaged)
    ticket, own = damaged.start(spec, [[RIGHT[0]]])
    damaged.session.wait(ticket, SECOND)  # the stray completion
    damaged.finish(ticket)
    assert damaged.best(spec, own) != [RIGHT[1]]

    clean, _, _ = late_prefill_of_lane_0(ResetScope.CONFIGURATION)
    clean.board.device.clock.advance(60 * SECOND)
    spec = decode_spec(clean)
    ticket, own = clean.start(spec, [[RIGHT[0]]])
    clean.session.wait(ticket, SECOND)
    clean.finish(ticket)
    assert clean.best(spec, own) == [RIGHT[1]]


def test_double_completion_reaches_the_next_wait() -> None:
    rig = faulty(Fault(FaultPoint.COMPLETION_DOUBLE))
    first, _ = start_decode(rig)
    rig.finish(first)
    second, _ = start_decode(rig)
    code, status = rig.session.wait(second, SECOND)
    assert (code, status.ticket) == (0, first)
    rig.finish(second)


def test_swapped_completions_come_in_each_others_place() -> None:
    rig = faulty(Fault(FaultPoint.COMPLETION_SWAPPED), max_in_flight=2)
    first, _ = start_decode(rig, 0)
    second, _ = start_decode(rig, 1)
    assert rig.session.drain(SECOND) == 0
    assert rig.session.wait(first, 0)[1].ticket == second
    assert rig.session.wait(second, 0)[1].ticket == first


def test_lost_device_answers_18_everywhere_until_a_board_reset() -> None:
    rig = faulty(Fault(FaultPoint.DEVICE_LOST))
    ticket, _ = start_decode(rig)
    assert rig.session.wait(ticket, SECOND) == (18, None)
    assert rig.session.drain(SECOND) == 18
    assert not rig.board.health().ok
    assert rig.board.telemetry(0).memory_used is None
    spec = decode_spec(rig)
    assert rig.session.submit(spec, rig.buffers(spec, [[1]])) == (18, None)
    assert rig.board.reset(ResetScope.CHIP, "s") == 18
    options = LoadOptions(chips=(1,))
    assert rig.board.configure(sim_package(SMALL), options, "t", 1) == (18, None)
    assert rig.board.reset(ResetScope.BOARD, None) == 0
    assert rig.board.health().ok
    rig.configure(2)
    assert rig.generate(prompt_of(9), 8) == RIGHT


def test_board_reset_of_a_lost_device_ends_its_late_job_too() -> None:
    rig = faulty(Fault(FaultPoint.COMPLETION_LATE), Fault(FaultPoint.DEVICE_LOST, at_visit=2), max_in_flight=2)
    start_decode(rig, 0)
    ticket, _ = start_decode(rig, 1)
    assert rig.session.wait(ticket, SECOND) == (18, None)
    assert rig.board.counters().left == 2
    assert rig.board.reset(ResetScope.BOARD, None) == 0
    assert rig.board.counters().left == 0


@pytest.mark.parametrize(
    ("point", "operation", "code"),
    [
        (FaultPoint.MAP_FAILS, lambda b: b.map("tokens"), 24),
        (FaultPoint.SLICE_FAILS, lambda b: b.slice("tokens", (1, 4)), 22),
        (FaultPoint.CSR_FAILS, lambda b: b.set_csr("current_sequence_length", 4), 4),
        (FaultPoint.BUFFER_RESET_FAILS, lambda b: b.reset(), 4),
    ],
)
def test_buffer_fault_gives_its_code_on_its_visit_only(point: FaultPoint, operation, code: int) -> None:
    rig = faulty(Fault(point, at_visit=2))
    _, buffers = rig.session.allocate("prefill_b1", Bank.AUTO)
    assert [operation(buffers) for _ in range(3)] == [0, code, 0]


def test_failed_buffer_reset_scrubs_nothing() -> None:
    rig = faulty(Fault(FaultPoint.BUFFER_RESET_FAILS))
    _, buffers = rig.session.allocate("prefill_b1", Bank.AUTO)
    buffers.host("tokens")[...] = 9
    assert buffers.reset() == 4
    assert buffers.host("tokens").all()
    assert buffers.reset() == 0
    assert not buffers.host("tokens").any()


def test_session_faults_give_their_codes() -> None:
    rig = faulty(
        Fault(FaultPoint.ALLOCATE_FAILS), Fault(FaultPoint.KV_CANNOT_ALLOCATE), Fault(FaultPoint.KV_APPLY_FAILS)
    )
    assert rig.session.allocate("prefill_b1", Bank.AUTO) == (1, None)
    assert [rig.session.kv.can_allocate(1) for _ in range(2)] == [False, True]
    assert [rig.session.kv.apply(0, (0,), 1) for _ in range(2)] == [1, 0]


def test_configure_reset_and_counter_faults_change_nothing() -> None:
    plan = FaultPlan(
        [Fault(FaultPoint.CONFIGURE_FAILS), Fault(FaultPoint.RESET_FAILS), Fault(FaultPoint.COUNTERS_WRONG)]
    )
    board = SimBoard(SMALL, faults=plan)
    options = LoadOptions(chips=(0,))
    assert board.configure(sim_package(SMALL), options, "s", 1) == (5, None)
    assert board.configure(sim_package(SMALL), options, "s", 1)[0] == 0
    assert board.reset(ResetScope.BOARD, None) == 25
    assert board.telemetry(0).memory_used > 0  # still configured
    assert board.telemetry(0).resets == 0
    assert board.counters().left == 1
    assert board.counters().left == 0


@pytest.mark.parametrize(
    ("scope", "session_lives", "sibling_lives", "kv_is_kept", "resets"),
    [
        (ResetScope.CCU, True, True, True, (1, 0)),
        (ResetScope.SESSION, False, True, True, (1, 0)),
        (ResetScope.CONFIGURATION, False, False, True, (1, 1)),
        (ResetScope.CHIP, False, True, False, (1, 0)),
        (ResetScope.BOARD, False, False, False, (1, 1)),
    ],
)
def test_reset_destroys_what_its_scope_declares(
    scope: ResetScope, session_lives: bool, sibling_lives: bool, kv_is_kept: bool, resets: tuple[int, int]
) -> None:
    rig = Rig.on()
    _, sibling = rig.board.configure(sim_package(SMALL), LoadOptions(chips=(1,)), "sibling", 1)
    rig.prefill(0, prompt_of(9))
    assert rig.board.reset(scope, "s") == 0
    assert (rig.session.allocate("decode_b4", Bank.AUTO)[0] == 0) is session_lives
    assert (sibling.allocate("decode_b4", Bank.AUTO)[0] == 0) is sibling_lives
    assert tuple(rig.board.telemetry(chip).resets for chip in (0, 1)) == resets
    if not session_lives:
        rig.configure(2)
    assert (rig.decode(4, {0: (RIGHT[0], 9)})[0] == RIGHT[1]) is kv_is_kept


def test_reset_of_an_ended_session_refuses_its_jobs_and_buffers() -> None:
    rig = Rig.on()
    spec = decode_spec(rig)
    buffers = rig.buffers(spec, [[1]])
    assert rig.board.reset(ResetScope.CONFIGURATION, "s") == 0
    assert rig.session.submit(spec, buffers) == (16, None)
    assert rig.session.close() == 0
    old = rig.session
    rig.configure(2)
    assert rig.session.submit(decode_spec(rig), buffers) == (4, None)  # another generation's buffers
    assert old.submit(spec, buffers) == (16, None)


def test_reset_scope_without_proof_or_session_is_refused() -> None:
    unproven = Rig.on(PROFILES["calculet-2chip"])
    assert unproven.board.reset(ResetScope.CHIP, "s") == 27
    assert unproven.board.reset(ResetScope.SESSION, "s") == 27
    proven = Rig.on()
    assert proven.board.reset(ResetScope.CHIP, "nobody") == 4
    assert proven.board.reset(ResetScope.SESSION, None) == 4


def test_plan_fires_on_its_visits_and_heals() -> None:
    plan = FaultPlan([Fault(FaultPoint.SUBMIT_BUSY, at_visit=2, times=2), Fault(FaultPoint.SUBMIT_BUSY, 6)])
    fired = [plan.visit(FaultPoint.SUBMIT_BUSY) is not None for _ in range(7)]
    assert fired == [False, True, True, False, False, True, False]
    assert plan.fired == [(FaultPoint.SUBMIT_BUSY, visit) for visit in (2, 3, 6)]
    plan = FaultPlan([Fault(FaultPoint.SUBMIT_BUSY)])
    plan.heal()
    assert plan.visit(FaultPoint.SUBMIT_BUSY) is None


@pytest.mark.parametrize("bad", [{"at_visit": 0}, {"times": 0}, {"value": -1}])
def test_fault_with_impossible_numbers_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a fault needs"):
        Fault(FaultPoint.SUBMIT_BUSY, **bad)


def test_random_plan_is_decided_by_its_seed_alone() -> None:
    def firings(seed: int, others: int) -> list[int]:
        plan = random_plan(seed, activate=1.0, mean_gap=50)
        fired = []
        for visit in range(1, 1001):
            for _ in range(others):  # visits elsewhere must not move ours
                plan.visit(FaultPoint.MAP_FAILS)
            if plan.visit(FaultPoint.SUBMIT_BUSY):
                fired.append(visit)
        return fired

    assert firings(1, 0) == firings(1, 3)
    assert firings(1, 0) != firings(2, 0)
    assert 10 <= len(firings(1, 0)) <= 35  # 1000 visits, one in 50


def test_random_plan_activates_some_points_of_a_run() -> None:
    counts = [len(random_plan(seed, activate=0.3).active) for seed in range(50)]
    assert 5 < sum(counts) / 50 < 10  # 0.3 of 24 points
    assert len(set(counts)) > 3
    assert random_plan(1, activate=0.0).active == frozenset()
    with pytest.raises(ValueError, match="activate"):
        random_plan(1, activate=1.5)


def test_profile_latency_of_a_late_completion_outlasts_deadline_and_grace() -> None:
    rig = Rig.on(LANES, faults=FaultPlan([Fault(FaultPoint.COMPLETION_LATE)]))
    ticket, _ = rig.start(rig.spec("prefill_b1", [row_of(0, 0, 9)]), [prompt_of(9)])
    assert rig.session.wait(ticket, 15 * SECOND) == (13, None)
    rig.finish(ticket)


def test_job_that_is_over_with_a_code_says_so_and_leaves_its_kv_undefined() -> None:
    """Code 14 beside status DONE: the job's own trouble, and the next one may go at once."""
    rig = faulty(Fault(FaultPoint.CODE_WITH_STATUS, at_visit=2))
    first = rig.prefill(0, prompt_of(6))
    spec = rig.spec("decode_b1", [row_of(0, 6, 1)])
    ticket, _ = rig.start(spec, [[first]])
    code, status = rig.session.wait(ticket, SECOND)
    assert code == 14
    assert status is not None
    assert (status.status, status.ticket) == (StatusKind.DONE, ticket)
    assert rig.board.counters().left == 0
