"""A plan that somebody changed: every figure has a range, every name is known, and one sentence says what is not."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from soak_rig import calserve

from calserve.cli.app import SOAK_HOURS_MAX
from calserve.runtime.sim import FaultPoint
from calserve.simulate.oddities import ODDITIES
from calserve.simulate.one_board import BoardChoice, plan_on_board
from calserve.simulate.plan import HOUR, HOURS_MAX, MINUTE, Era, RunPlan, draw_plan
from calserve.simulate.plan_check import NAMES, RANGES, doubt_about_plan
from calserve.simulate.record import Made, Record, content_digest, made_here, write_record

NUMBERS, WORDS = (int, float), (str,)
Change = Callable[[dict[str, Any]], None]


def test_drawn_plans_are_sound() -> None:
    assert [doubt_about_plan(draw_plan(seed, 4 * MINUTE)) for seed in range(100)] == [""] * 100
    assert [doubt_about_plan(draw_plan(seed, 24 * HOUR)) for seed in range(5)] == [""] * 5
    assert [doubt_about_plan(draw_plan(seed, 1)) for seed in range(20)] == [""] * 20
    for profile in ("assumed-pingpong", "assumed-lanes", "calculet-2chip"):
        assert doubt_about_plan(plan_on_board(draw_plan(3, 4 * HOUR), BoardChoice(profile))) == ""
    assert doubt_about_plan(plan_on_board(draw_plan(3, 4 * HOUR), BoardChoice("assumed-pingpong", 2))) == ""
    assert HOURS_MAX == SOAK_HOURS_MAX


def kinds_of(hint: Any) -> set[type]:
    """The plain types in a field's type."""
    inner = getattr(hint, "__args__", ())
    return set().union(*(kinds_of(each) for each in inner if each is not ...)) if inner else {hint}


def test_every_figure_and_every_name_of_a_plan_is_held_against_something() -> None:
    """A field that is added one day needs a range, or names, or it is a word that only the board can judge."""
    left: list[type] = [RunPlan]
    seen = set()
    while left:
        kind = left.pop()
        hints = get_type_hints(kind)
        for each in fields(kind):
            kinds = kinds_of(hints[each.name]) - {bool}
            left += [inner for inner in kinds if is_dataclass(inner)]
            numbers, words = kinds & set(NUMBERS), kinds & set(WORDS)
            assert not numbers or each.name in RANGES[kind], f"{kind.__name__}.{each.name} has no range"
            assert not words or each.name in NAMES.get(kind, {}) or each.name in ("base", "profile"), each.name
        seen.add(kind)
    assert seen == set(RANGES)


@pytest.fixture(scope="module")
def sound() -> dict[str, Any]:
    """The record of a clean run of seed 3, as JSON, with a hash that was made up."""
    plan = draw_plan(3, 2 * MINUTE)
    made = msgspec.to_builtins(Record(plan, made_here(), "clean", plan.duration_ns / HOUR, ["ab" * 32]))
    tree: dict[str, Any] = json.loads(json.dumps(made))
    return tree


def refusal(tmp_path: Path, tree: dict[str, Any]) -> str:
    """Of the command, for a record with that content and the right digest."""
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**tree, "content_sha256": content_digest(tree)}))
    told = calserve("soak", "--replay", path)
    assert told.exit_code == 1
    assert told.stdout == ""
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"calserve: {path}: this version cannot replay it: ")
    assert line.endswith(".")
    return line


def era(*keys: str, to: Any) -> Change:
    def change(tree: dict[str, Any]) -> None:
        at = tree["plan"]["eras"][0]
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = to

    return change


def whole(name: str, to: Any) -> Change:
    return lambda tree: tree.__setitem__(name, to)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (era("safety_ns", to=-5), "plan.eras[0].safety_ns is -5, not 1 to "),
        (era("safety_ns", to=10**18), "plan.eras[0].safety_ns"),
        (era("safety_ns", to=10**30), "plan.eras[0].safety_ns"),
        (era("number", to=-1), "plan.eras[0].number is -1"),
        (era("odd_rate", to=0.0), "plan.eras[0].odd_rate is 0.0"),
        (era("oddities", to=["fly"]), "plan.eras[0].oddities[0] is 'fly', which there is not."),
        (era("crashes_ns", to=[10**15]), "plan.eras[0].crashes_ns has 1000000000000000"),
        (era("crashes_ns", to=[1] * 10_001), "plan.eras[0].crashes_ns has 10001 items"),
        (era("board", "base", to="/etc/passwd"), "'/etc/passwd' is none of assumed-lanes, assumed-pingpong, calc"),
        (era("board", "base", to="mine"), "'mine' is none of "),
        (era("board", "context", to=1), "plan.eras[0].board.context is 1, not 32 to 65536."),
        (era("board", "profiles", to=[0]), "plan.eras[0].board.profiles[0] is 0"),
        (era("board", "profiles", to=[]), "plan.eras[0].board"),
        (era("board", "profiles", to=[4, 1]), "plan.eras[0].board: board profile assumed-lanes: profiles must ascend."),
        (era("board", "profiles", to=[1, 5]), "there is no decode time for 5 rows."),
        (era("board", "sessions", to=9), "plan.eras[0].board.sessions is 9, not 1, or one for each of 2 chips."),
        (era("board", "tile", to=0), "plan.eras[0].board.tile is 0"),
        (era("board", "dtype", to="int8"), "plan.eras[0].board.dtype is 'int8', which there is not."),
        (era("board", "cut", to=["fly"]), "plan.eras[0].board.cut[0] is 'fly'"),
        (era("board", "assumes", to=["fly"]), "plan.eras[0].board.assumes[0] is 'fly'"),
        (era("server", "max_in_flight", to=7), "plan.eras[0].server.max_in_flight is 7, not 1 to 2."),
        (era("server", "max_in_flight", to=2), "plan.eras[0].server.max_in_flight is 2, and its board has 1."),
        (era("server", "max_waiting_requests", to=0), "plan.eras[0].server.max_waiting_requests is 0"),
        (era("server", "execution_deadline_floor_ns", to=0), "plan.eras[0].server.execution_deadline_floor_ns is 0"),
        (era("faults", "points", to=["nope"]), "plan.eras[0].faults.points[0] is 'nope', which there is not."),
        (era("faults", "mean_gap", to=0), "plan.eras[0].faults.mean_gap is 0"),
        (
            era("faults", "listed", to=[{"point": "nope", "at_visit": 1}]),
            "plan.eras[0].faults.listed[0].point is 'nope', which there is not.",
        ),
        (
            era("faults", "listed", to=[{"point": "submit_busy", "at_visit": 0}]),
            "plan.eras[0].faults.listed[0].at_visit is 0",
        ),
        (era("traffic", "burst_gap_ns", to=0), "plan.eras[0].traffic.burst_gap_ns is 0"),
        (era("traffic", "burst_size", to=10**9), "plan.eras[0].traffic.burst_size is 1000000000, not 1 to 2000."),
        (era("traffic", "storm_size", to=10**9), "plan.eras[0].traffic.storm_size is 1000000000"),
        (era("traffic", "mean_output", to=0), "plan.eras[0].traffic.mean_output is 0"),
        (era("traffic", "habits", to=["fly"]), "plan.eras[0].traffic.habits[0] is 'fly', which there is not."),
        (era("pace", "wake", to=[5, 1]), "plan.eras[0].pace.wake is 5 to 1, which is backwards."),
        (era("pace", "wake", to=[-5, -1]), "plan.eras[0].pace.wake[0] is -5"),
        (era("pace", "wake", to=[]), "`$.plan.eras[0].pace.wake`."),
        (era("pace", "hiccup_every", to=0), "plan.eras[0].pace.hiccup_every is 0"),
        (era("traffic", "habbits", to=[]), "there is no plan.eras[0].traffic.habbits."),
        (lambda tree: tree["plan"].update(eras=[]), "plan.eras are 0, not 1 to 8784."),
        (lambda tree: tree["plan"].update(seed=-1), "plan.seed is -1"),
        (lambda tree: tree["plan"].update(profile="schema: x"), "the plan's own profile: "),
        (lambda tree: tree["plan"]["eras"].append(tree["plan"]["eras"][0]), "plan.eras have the number 0 twice."),
        (whole("zzz", 1), "there is no zzz."),
        (whole("hours", 24.0), "hours is 24, and the eras of its plan are 0.0333333 hours."),
        (whole("verdict", "fine"), "verdict is 'fine', not one of clean, weak, violated, running, crashed, stopped."),
        (whole("hashes", []), "the verdict is clean, and there are 0 hashes for 1 eras."),
        (whole("hashes", ["ab" * 32] * 2), "the verdict is clean, and there are 2 hashes for 1 eras."),
        (whole("hashes", ["xy"]), "hashes are SHA-256, 64 hexadecimal digits each."),
    ],
)
def test_record_that_was_changed_into_what_cannot_be_run_is_refused_in_one_sentence(
    tmp_path: Path, sound: dict[str, Any], change: Change, said: str
) -> None:
    tree = copy.deepcopy(sound)
    change(tree)
    assert said in refusal(tmp_path, tree)


def test_eras_of_more_than_a_year_are_refused() -> None:
    (one,) = draw_plan(3, 2 * MINUTE).eras
    eras = tuple(replace(one, number=n, safety_ns=HOURS_MAX * HOUR) for n in range(2))
    assert "hours in all, not at most 8784." in doubt_about_plan(RunPlan(3, eras))


def test_figure_that_is_no_number_is_refused() -> None:
    (one,) = draw_plan(3, 2 * MINUTE).eras
    assert "odd_rate is nan" in doubt_about_plan(RunPlan(3, (replace(one, odd_rate=math.nan),)))


def test_names_of_a_plan_are_those_of_the_board_and_of_the_oddities() -> None:
    (one,) = draw_plan(3, 2 * MINUTE).eras
    every = replace(
        one, oddities=tuple(ODDITIES), faults=replace(one.faults, points=tuple(point.value for point in FaultPoint))
    )
    assert isinstance(every, Era)
    assert doubt_about_plan(RunPlan(3, (every,))) == ""


def test_record_leaves_nothing_beside_it_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def full(self: Path, text: str, encoding: str | None = None) -> int:
        real(self, text[:10], encoding)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    path = tmp_path / "record.json"
    with pytest.raises(OSError, match="No space left") as told:
        write_record(Record(draw_plan(3, MINUTE), Made("", "", "")), path)
    assert told.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []
