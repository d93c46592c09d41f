"""Fault plans as files: the same faults as the plan they were described from, or one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from calserve.runtime.sim import Fault, FaultPlan, FaultPlanError, FaultPoint, load_fault_plan, random_plan

HEAD = "schema: calserve-fault-plan/v1\n"


def firings(plan: FaultPlan, visits: int = 3000) -> list[tuple[str, int, int]]:
    """(point, visit, value) of everything that fires when every point is visited in turn."""
    fired = []
    for visit in range(1, visits + 1):
        for point in FaultPoint:
            if fault := plan.visit(point):
                fired.append((point.value, visit, fault.value))
    return fired


def test_listed_plan_fires_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"{HEAD}faults:\n  - {{point: submit_busy, at_visit: 2, times: 2, value: 28}}\n  - point: device_lost\n"
    )
    assert firings(load_fault_plan(path), 5) == [
        ("device_lost", 1, 0),
        ("submit_busy", 2, 28),
        ("submit_busy", 3, 28),
    ]
    assert firings(load_fault_plan(str(path)), 5) == firings(load_fault_plan(path.read_text()), 5)


def test_random_plan_of_a_file_is_the_one_of_its_seed() -> None:
    text = (
        f"{HEAD}random: {{seed: 7, activate: 1, mean_gap: 100, late_ms: 2.5, points: [submit_busy, completion_late]}}\n"
    )
    points = (FaultPoint.SUBMIT_BUSY, FaultPoint.COMPLETION_LATE)
    right = firings(random_plan(7, points, 1.0, 100, 2_500_000))
    assert firings(load_fault_plan(text)) == right
    assert {value for point, _, value in right if point == "completion_late"} == {2_500_000}
    assert {point for point, _, _ in right} == {"completion_late", "submit_busy"}


def test_random_plan_without_points_takes_all_of_them() -> None:
    plan = load_fault_plan(f"{HEAD}random: {{seed: 7, activate: 1}}\n")
    assert plan.active == frozenset(FaultPoint)


@pytest.mark.parametrize(
    "make",
    [
        lambda: random_plan(11, activate=0.5, mean_gap=40, late_ns=123_456_789),
        lambda: random_plan(12, [FaultPoint.MAP_FAILS], activate=1e-05, late_ns=5),
        lambda: FaultPlan(
            [Fault(FaultPoint.MAP_FAILS, 3, 2, 9), Fault(FaultPoint.CSR_FAILS), Fault(FaultPoint.MAP_FAILS)]
        ),
        FaultPlan,
    ],
)
def test_description_of_a_plan_is_plain_and_loads_as_the_same_plan(make) -> None:
    told = make().describe()
    text = json.dumps(told)
    again = load_fault_plan(text)
    assert again.describe() == told
    assert firings(again) == firings(make())
    assert firings(load_fault_plan(json.dumps(told, indent=2))) == firings(make())


def test_description_is_the_plan_not_what_became_of_it() -> None:
    plan = FaultPlan([Fault(FaultPoint.MAP_FAILS)])
    told = plan.describe()
    plan.visit(FaultPoint.MAP_FAILS)
    plan.heal()
    assert plan.describe() == told
    assert plan.fired == [(FaultPoint.MAP_FAILS, 1)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEAD}faults: [{{point: submit_bussy}}]\n", ["faults[0].point", "submit_bussy"]),
        (f"{HEAD}faults: [{{at_visit: 1}}]\n", ["faults[0]", "point"]),
        (f"{HEAD}faults: [{{point: submit_busy, at_visit: 0}}]\n", ["faults[0].at_visit", "1"]),
        (f"{HEAD}faults: [{{point: submit_busy, times: -1}}]\n", ["faults[0].times"]),
        (f"{HEAD}faults: [{{point: submit_busy, times: 1.5}}]\n", ["faults[0].times", "float"]),
        (f"{HEAD}faults: [{{point: submit_busy, value: .nan}}]\n", ["faults[0].value"]),
        (f"{HEAD}faults: [{{point: submit_busy, value: {10**20}}}]\n", ["faults[0].value"]),
        (f"{HEAD}faults: [{{point: submit_busy, when: 1}}]\n", ["faults[0]", "when"]),
        (f"{HEAD}faults: [{{point: submit_busy, value: 1, value: 2}}]\n", ["value", "twice"]),
        (f"{HEAD}faults: submit_busy\n", ["faults", "array"]),
        (f"{HEAD}random: {{activate: 1}}\n", ["random", "seed"]),
        (f"{HEAD}random: {{seed: -1}}\n", ["random.seed"]),
        (f"{HEAD}random: {{seed: soon}}\n", ["random.seed", "str"]),
        (f"{HEAD}random: {{seed: 1, activate: 2}}\n", ["random.activate"]),
        (f"{HEAD}random: {{seed: 1, activate: .nan}}\n", ["random.activate"]),
        (f"{HEAD}random: {{seed: 1, mean_gap: 0}}\n", ["random.mean_gap"]),
        (f"{HEAD}random: {{seed: 1, late_ms: .inf}}\n", ["random.late_ms"]),
        (f"{HEAD}random: {{seed: 1, points: []}}\n", ["random.points"]),
        (f"{HEAD}random: {{seed: 1, points: [nothing]}}\n", ["random.points[0]", "nothing"]),
        (f"{HEAD}random: {{seed: 1}}\nfaults: []\n", ["one of faults", "random"]),
        (HEAD + "\n", ["one of faults", "random"]),
        (f"{HEAD}fault: []\n", ["unknown field", "fault"]),
        ("schema: calserve-fault-plan/v2\nfaults: []\n", ["calserve-fault-plan/v1"]),
        ("{}", ["calserve-fault-plan/v1"]),
        ('{"schema": "calserve-fault-plan/v1", "random": {"seed": 1, "activate": NaN}}', ["random.activate"]),
        ("faults: [\n", ["YAML"]),
        ("[" * 5000 + "\n", ["nested too deeply"]),
        ("{" + "[" * 200_000, ["nested too deeply"]),
    ],
)
def test_wrong_plan_is_one_sentence_that_names_the_key(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    for given, name in ((text, "the fault plan"), (path, str(path))):
        with pytest.raises(FaultPlanError) as error:
            load_fault_plan(given)
        sentence = str(error.value)
        assert sentence.startswith(f"{name}: ")
        assert sentence.endswith(".")
        assert "\n" not in sentence
        for word in words:
            assert word in sentence


def test_plan_file_that_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FaultPlanError, match="not a regular file"):
        load_fault_plan(tmp_path / "fifo")
    with pytest.raises(FaultPlanError, match="No such file"):
        load_fault_plan(str(tmp_path / "none"))


def test_plan_tells_each_firing_as_it_happens() -> None:
    plan = FaultPlan([Fault(FaultPoint.MAP_FAILS, at_visit=2)])
    heard: list[FaultPoint] = []
    plan.on_fire = heard.append
    for expected in ([], [FaultPoint.MAP_FAILS], [FaultPoint.MAP_FAILS]):
        plan.visit(FaultPoint.MAP_FAILS)
        assert heard == expected
