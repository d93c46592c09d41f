"""A package that is refused: the last one that was good comes back, once (seed 003, section 8; seed 000, 14)."""

from __future__ import annotations

import pytest
from core_rig import MS, Rig, fault

from calserve.core.commands import Command, Configure, Release, Validate, Warm
from calserve.core.events import Configured, Load, Released, Unload, Validated, Warmed
from calserve.core.outcomes import FaultClass, RowEnd
from calserve.core.states import GenerationState as G

F = FaultClass


def replacing(where: str, kind: F = F.ARTIFACT) -> tuple[Rig, list[Command]]:
    """p serves; q is loaded over it and fails at `where`. Returns what was ordered then."""
    rig = Rig().up(package="p")
    (release,) = rig.send(Load("s", "m", "q"))
    (order,) = rig.send(rig.answer(release))
    rig.submit("asked_for_q")
    for step in ("validate", "configure", "warm"):
        if step == where:
            break
        (order,) = rig.send(rig.answer(order))
    match order:
        case Validate(_, generation):
            return rig, rig.send(Validated("s", generation, fault(kind)))
        case Configure(_, generation):
            return rig, rig.send(Configured("s", generation, None, fault(kind)))
        case Warm(_, generation):
            return rig, rig.send(Warmed("s", generation, (), fault(kind)))
    raise AssertionError(order)


@pytest.mark.parametrize("where", ["validate", "configure", "warm"])
def test_load_of_another_package_that_fails_brings_the_last_good_one_back(where: str) -> None:
    rig, commands = replacing(where)
    assert rig.refusal("asked_for_q") == ("model_failed", 0, 0)  # it was made for the other package
    rig.lifecycle(commands)
    assert (rig.view.state, rig.view.package, rig.view.refused_package) == (G.READY, "p", "q")
    assert rig.counters["roll_backs"] == 1
    rig.submit("after")
    assert "after" in rig.rows


def test_roll_back_waits_for_the_release_of_the_refused_package() -> None:
    rig, commands = replacing("warm")
    assert commands[-1] == Release("s", 2, fault(F.ARTIFACT))
    rig.submit("too_early")
    assert rig.refusal("too_early") == ("model_recovering", 0, 0)
    assert rig.send(Released("s", 2)) == [Validate("s", 3, "m", "p")]


def test_roll_back_that_fails_too_is_failed_and_not_tried_again() -> None:
    rig, commands = replacing("validate")
    assert commands[-1] == Validate("s", 3, "m", "p")
    assert rig.send(Validated("s", 3, fault(F.ARTIFACT))) == []
    assert (rig.view.state, rig.counters["roll_backs"]) == (G.FAILED, 1)


def test_roll_back_of_a_package_refused_while_it_served() -> None:
    rig = Rig().up(package="p")
    rig.lifecycle(rig.send(Load("s", "m", "q")))
    rig.submit("r1", new=9)
    rig.lifecycle(rig.failed(F.ARTIFACT))
    assert (rig.reason("r1"), rig.view.state, rig.view.package) == ("internal", G.READY, "p")
    rig.submit("r2", new=9)
    rig.failed(F.ARTIFACT)  # p is the only one left, and it is refused as well
    assert (rig.view.state, rig.counters["roll_backs"]) == (G.FAILED, 1)


def test_roll_back_after_a_golden_that_fails_on_the_retest() -> None:
    rig = Rig().up(package="p")
    rig.lifecycle(rig.send(Load("s", "m", "q")))
    rig.submit("r1", new=9)
    commands = rig.done(ends={"r1": RowEnd.ERROR})  # not finite: isolated, its goldens run again
    while not any(isinstance(c, Warm) for c in commands):
        (order,) = [c for c in commands if isinstance(c, Release | Configure)]
        commands = rig.send(rig.answer(order))
    rig.lifecycle(rig.send(Warmed("s", 3, (), fault(F.ARTIFACT, "warm"))))
    assert (rig.view.state, rig.view.package) == (G.READY, "p")


def test_roll_back_has_nowhere_to_go_for_a_first_package_or_the_same_one() -> None:
    rig = Rig().up(package="p")
    rig.submit("r1", new=9)
    rig.lifecycle(rig.failed(F.ARTIFACT))
    assert (rig.view.state, "roll_backs" in rig.counters) == (G.FAILED, False)
    rig.lifecycle(rig.send(Load("s", "m", "p")))
    assert (rig.view.state, rig.view.refused_package) == (G.READY, "")


def test_roll_back_never_follows_a_compatibility_failure() -> None:
    rig, _ = replacing("configure", F.COMPATIBILITY)
    assert (rig.view.state, rig.view.package, "roll_backs" in rig.counters) == (G.FAILED, "q", False)


def test_roll_back_is_not_to_what_was_taken_down_on_purpose() -> None:
    rig = Rig().up(package="p")
    rig.lifecycle(rig.send(Unload("s", 0)))
    rig.send(Load("s", "m", "q"))
    rig.send(Validated("s", 2, fault(F.ARTIFACT)))
    assert rig.view.state is G.FAILED


def test_roll_back_under_way_is_dropped_by_an_unload() -> None:
    rig, _ = replacing("warm")
    rig.send(Unload("s", 100 * MS))
    assert rig.send(Released("s", 2)) == []
    assert rig.view.state is G.FAILED


def test_unload_of_a_generation_that_is_being_refused_rolls_nothing_back() -> None:
    rig = Rig().up(package="p")
    rig.lifecycle(rig.send(Load("s", "m", "q")))
    rig.submit("r1", new=9)
    rig.submit("r2", new=9)
    rig.failed(F.ARTIFACT)
    assert rig.view.state is G.FAILED  # nothing was left to wait for
    rig.send(Unload("s", 100 * MS))
    rig.send(Released("s", 2))
    assert rig.view.state is G.FAILED
