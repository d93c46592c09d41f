"""The ledger: units lowest first, worst case as a count, transactions, fences."""

from __future__ import annotations

import pytest

from calserve.core.kv import KvLedger
from calserve.core.states import IllegalTransition, KvTxnState, LaneState


def paged() -> KvLedger:
    """4 lanes, 8 units of 4 tokens."""
    return KvLedger(4, 8, 4, lane_is_unit=False)


def test_reserve_takes_the_lowest_lane_and_counts_the_worst_case() -> None:
    ledger = paged()
    first, second = ledger.reserve("a", 9), ledger.reserve("b", 4)
    assert (first.index, second.index) == (0, 1)
    assert ledger.promised == 3 + 1  # 9 tokens need 3 units of 4
    assert ledger.free_units == 8  # ids are given as the sequence grows


@pytest.mark.parametrize(("tokens", "units"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (32, 8)])
def test_units_for_rounds_up(tokens: int, units: int) -> None:
    assert paged().units_for(tokens) == units


def test_reserve_beyond_the_promise_is_refused_though_units_are_free() -> None:
    ledger = paged()
    ledger.reserve("a", 28)  # 7 of 8 units promised, none used
    assert ledger.free_units == 8
    assert not ledger.can_reserve(5)
    assert ledger.can_reserve(4)
    with pytest.raises(RuntimeError, match="promised beyond"):
        ledger.reserve("b", 5)


def test_begin_gives_units_lowest_first_as_the_sequence_grows() -> None:
    ledger = paged()
    a, b = ledger.reserve("a", 8), ledger.reserve("b", 8)
    first = ledger.begin(a, 3)
    other = ledger.begin(b, 4)
    assert (a.units, b.units) == ([0], [1])
    for txn in (first, other):
        ledger.submit(txn)
        ledger.commit(txn)
    ledger.begin(a, 1)
    assert a.units == [0]  # the fourth token still fits the first unit
    ledger.begin(b, 1)
    assert b.units == [1, 2]


def test_begin_beyond_the_reservation_raises() -> None:
    ledger = paged()
    lane = ledger.reserve("a", 4)
    with pytest.raises(RuntimeError, match="5 tokens, 4 reserved"):
        ledger.begin(lane, 5)
    assert lane.state is LaneState.RESERVED


def test_commit_moves_the_length_and_roll_back_does_not() -> None:
    ledger = paged()
    lane = ledger.reserve("a", 8)
    good = ledger.begin(lane, 3)
    ledger.submit(good)
    assert lane.committed == 0  # submitted is not written
    ledger.commit(good)
    assert (lane.committed, good.state) == (3, KvTxnState.COMMITTED)
    bad = ledger.begin(lane, 2)
    ledger.roll_back(bad)
    assert (lane.committed, lane.state, bad.state) == (3, LaneState.ACTIVE, KvTxnState.ROLLED_BACK)


def test_a_second_transaction_on_a_lane_in_a_job_is_illegal() -> None:
    ledger = paged()
    lane = ledger.reserve("a", 8)
    ledger.begin(lane, 1)
    with pytest.raises(IllegalTransition):
        ledger.begin(lane, 1)


def test_commit_without_submit_is_illegal() -> None:
    ledger = paged()
    txn = ledger.begin(ledger.reserve("a", 8), 1)
    with pytest.raises(IllegalTransition):
        ledger.commit(txn)


def test_release_under_a_job_frees_only_when_the_job_retired() -> None:
    freed: list[int] = []
    ledger = KvLedger(4, 8, 4, lane_is_unit=False, on_free=freed.append)
    lane = ledger.reserve("a", 8)
    txn = ledger.begin(lane, 5)
    ledger.submit(txn)
    ledger.release(lane)
    assert lane.state is LaneState.RELEASING
    assert (ledger.free_lanes, ledger.free_units, freed) == (3, 6, [])
    assert ledger.reserve("b", 4).index == 1
    ledger.commit(txn)
    assert (lane.state, ledger.free_units, freed) == (LaneState.FREE, 8, [0])
    ledger.check()


def test_release_of_a_lane_no_job_touched_tells_the_device_nothing() -> None:
    freed: list[int] = []
    ledger = KvLedger(4, 8, 4, lane_is_unit=False, on_free=freed.append)
    ledger.release(ledger.reserve("a", 8))
    assert (ledger.free_lanes, ledger.promised, freed) == (4, 0, [])


def test_a_lost_lane_is_fenced_with_its_units_for_good() -> None:
    ledger = paged()
    lane = ledger.reserve("a", 16)
    txn = ledger.begin(lane, 6)
    ledger.submit(txn)
    ledger.lose(txn)
    ledger.release(lane)
    assert (lane.state, ledger.unknown, ledger.promised) == (LaneState.UNKNOWN, 2, 0)
    assert ledger.units_by_state() == {"free": 6, "held": 0, "quarantined": 0, "unknown": 2}
    taken = [ledger.reserve(name, 8) for name in "bcd"]
    for other in taken:
        ledger.begin(other, 8)
    assert 0 not in [lane.index for lane in taken]
    assert not {0, 1} & {unit for lane in taken for unit in lane.units}
    assert not ledger.can_reserve(1)
    ledger.check()


def test_lane_board_unit_is_the_lane_itself() -> None:
    ledger = KvLedger(3, 3, 64, lane_is_unit=True)
    first, second = ledger.reserve("a", 60), ledger.reserve("b", 2)
    ledger.begin(first, 40)
    assert (first.units, second.units) == ([0], [1])
    ledger.release(second)
    assert ledger.reserve("c", 5).units == [1]
    ledger.check()


def test_freed_lane_and_units_are_reused_lowest_first() -> None:
    ledger = paged()
    lanes = [ledger.reserve(name, 4) for name in "abc"]
    for lane in lanes:
        txn = ledger.begin(lane, 4)
        ledger.submit(txn)
        ledger.commit(txn)
    ledger.release(lanes[1])
    ledger.release(lanes[0])
    again = ledger.reserve("d", 8)
    ledger.begin(again, 8)
    assert (again.index, again.units) == (0, [0, 1])


def test_check_names_a_unit_in_two_lanes() -> None:
    ledger = paged()
    a, b = ledger.reserve("a", 4), ledger.reserve("b", 4)
    ledger.begin(a, 4)
    ledger.begin(b, 4)
    b.units[0] = a.units[0]
    with pytest.raises(AssertionError, match="unit 0 in"):
        ledger.check()
