"""What a seed gives, and what a record gives back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from calserve.simulate.oddities import ODDITIES
from calserve.simulate.one_board import BoardChoice, plan_on_board
from calserve.simulate.plan import HABITS, HOUR, MINUTE, SECOND, Era, FaultsPlan, RunPlan, draw_plan
from calserve.simulate.record import Made, Record, RecordError, is_as_written, read_record, write_record
from calserve.simulate.result import RunResult
from calserve.simulate.shrink import kind_of, shrink

MADE = Made("0123456789abcdef", "0.1.0", "3.11.7")


def test_plan_of_one_seed_is_always_the_same_and_of_another_not() -> None:
    assert draw_plan(7, 24 * HOUR) == draw_plan(7, 24 * HOUR)
    assert draw_plan(7, 24 * HOUR) != draw_plan(8, 24 * HOUR)


def test_plan_of_a_day_has_an_era_an_hour_and_a_short_one_has_one() -> None:
    day = draw_plan(3, 24 * HOUR)
    assert len(day.eras) == 24
    assert day.duration_ns == 24 * HOUR
    assert all(era.liveness_ns > 0 and era.safety_ns > era.liveness_ns for era in day.eras)
    assert len(draw_plan(3, 4 * MINUTE).eras) == 1


def test_plans_of_many_seeds_have_every_habit_board_and_fault() -> None:
    eras = [draw_plan(seed, 4 * MINUTE).eras[0] for seed in range(200)]
    assert {habit for era in eras for habit in era.traffic.habits} == set(HABITS)
    assert {era.board.base for era in eras} == {"assumed-lanes", "calculet-2chip"}
    assert {era.server.max_in_flight for era in eras} == {1, 2}
    assert {era.server.has_tenant_limits for era in eras} == {False, True}
    assert {oddity for era in eras for oddity in era.oddities} == set(ODDITIES)
    assert any(era.unload_at_ns for era in eras)
    from calserve.runtime.sim import FaultPoint

    assert {point for era in eras for point in era.faults.points} == {point.value for point in FaultPoint}


def test_straggler_is_drawn_where_there_is_time_for_it_and_a_reset_stops_it_and_nothing_else_is_wrong() -> None:
    def listed(minutes: int) -> list[Era]:
        return [era for seed in range(200) for era in draw_plan(seed, minutes * MINUTE).eras if era.faults.listed]

    assert not listed(1)
    late = listed(4)
    assert late
    for era in late:
        assert (era.board.base, "chip_reset" in era.board.cut) == ("assumed-lanes", False)
        assert (era.faults.points, era.oddities, era.crashes_ns) == ((), (), ())
        assert [(fault.point, fault.value) for fault in era.faults.listed] == [("completion_late", 200 * SECOND)]
    plan = RunPlan(1, tuple(late))
    for base, count in (("assumed-pingpong", len(late)), ("calculet-2chip", 0)):
        moved = plan_on_board(plan, BoardChoice(base))
        assert sum(len(era.faults.listed) for era in moved.eras) == count


def test_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = Record(draw_plan(5, 4 * MINUTE), MADE, "violated", 4 / 60, ["ab" * 32], ["I4: something"])
    path = tmp_path / "deep" / "record.json"
    write_record(record, path)
    again = read_record(path)
    assert is_as_written(path, again)
    assert replace(again, content_sha256="") == record
    assert [each.name for each in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "schema is 'None'"),
        ('{"schema": "calserve-soak-record/v9"}', "this version replays calserve-soak-record/v1"),
        ('{"schema": "calserve-soak-record/v1"}', "cannot replay it"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_record_that_is_none_gets_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=said) as refused:
        read_record(path)
    assert "\n" not in str(refused.value)


def test_record_of_an_unknown_plan_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(Record(draw_plan(5, 4 * MINUTE), MADE), path)
    tree = json.loads(path.read_text())
    del tree["plan"]["eras"][0]["server"]["max_in_flight"], tree["plan"]["eras"][0]["board"]
    path.write_text(json.dumps(tree))
    with pytest.raises(RecordError, match="board"):
        read_record(path)


def test_record_missing_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="there is no such record"):
        read_record(tmp_path / "nothing.json")


def test_shrink_keeps_what_fails_and_drops_the_rest() -> None:
    """A made-up bug: it needs one fault point and one habit, and half a minute."""
    plan = draw_plan(11, 24 * HOUR)
    era = replace(plan.eras[2], faults=FaultsPlan(("map_fails", "submit_busy", "csr_fails", "logits_nan")), number=2)
    plan = RunPlan(plan.seed, (plan.eras[0], plan.eras[1], replace(era, traffic=replace(era.traffic, habits=HABITS))))

    def run(candidate: RunPlan) -> RunResult:
        result = RunResult()
        for era in candidate.eras:
            if "submit_busy" in era.faults.points and "stall" in era.traffic.habits and era.safety_ns >= 30_000_000_000:
                result.violations.append("I4: planted")
        return result

    assert kind_of(run(plan)) == "I4"
    small = shrink(plan, "I4", attempts=200, run=run)
    assert kind_of(run(small)) == "I4"
    assert [era.faults.points for era in small.eras] == [("submit_busy",)]
    assert small.eras[0].traffic.habits == ("stall",)
    assert small.eras[0].safety_ns < 60_000_000_000


def test_shrink_of_what_needs_two_eras_makes_each_smaller() -> None:
    """What a process left on the board and another one finds: neither era can go, and both can lose what is odd."""
    first, second = draw_plan(11, 2 * HOUR).eras
    odd = replace(first, oddities=("status_missing", "graphs_odd"), unload_at_ns=(1,))
    plan = RunPlan(11, (odd, replace(second, keeps_device=True, oddities=("output_flat",))))

    def run(candidate: RunPlan) -> RunResult:
        needs = len(candidate.eras) == 2 and "graphs_odd" in candidate.eras[0].oddities
        return RunResult(violations=["I4: planted"] if needs else [])

    small = shrink(plan, "I4", attempts=400, run=run)
    assert [era.oddities for era in small.eras] == [("graphs_odd",), ()]
    assert [era.unload_at_ns for era in small.eras] == [(), ()]
    assert [era.traffic.habits for era in small.eras] == [(), ()]


def test_shrink_stops_at_its_bound() -> None:
    asked = []

    def run(candidate: RunPlan) -> RunResult:
        asked.append(candidate)
        return RunResult(violations=["I1: always"])

    shrink(draw_plan(1, 24 * HOUR), "I1", attempts=5, run=run)
    assert len(asked) == 5


def test_record_is_plain_data() -> None:
    """Whatever reads JSON can read it: no tuples of numpy, no enum names of ours."""
    assert json.loads(json.dumps(msgspec.to_builtins(Record(draw_plan(5, MINUTE), MADE))))["schema"]
