"""A configuration that broke off or contradicted itself: what the board holds under the name, only a reset ends.

A release reaches a session that was handed over; here none was. So the next attempt finds the name taken.
"""

from __future__ import annotations

import pytest
from core_rig import MS, Rig, fault, paged_facts

from calserve.core.commands import Command, Configure, Release, Reset, ResetScope
from calserve.core.config import SchedulerConfig
from calserve.core.events import Configured, Load, ResetDone
from calserve.core.outcomes import FaultClass
from calserve.core.states import GenerationState as G

F = FaultClass
RESETS = frozenset({"session_reset", "chip_reset"})
WINDOW = 1000 * MS


def configuring(rig: Rig, session: str = "s") -> Configure:
    """A load of a session up to its order to configure."""
    (order,) = rig.send(Load(session, "m", "p"))
    (order,) = rig.send(rig.answer(order))
    assert isinstance(order, Configure)
    return order


def broke_off(rig: Rig, order: Configure, kind: F = F.UNKNOWN, proven: frozenset[str] = RESETS) -> list[Command]:
    return rig.send(Configured(order.session, order.generation, None, fault(kind, "configure"), proven))


def state_of(rig: Rig, session: str) -> G:
    return next(view.state for view in rig.engine.snapshot(rig.now).sessions if view.session == session)


@pytest.mark.parametrize(
    ("proven", "scope"),
    [(RESETS, ResetScope.SESSION), (RESETS - {"session_reset"}, ResetScope.CHIP)],
)
def test_first_configuration_that_breaks_off_beside_a_sibling_is_reset_as_narrowly_as_the_board_proves(
    proven: frozenset[str], scope: ResetScope
) -> None:
    """Nothing was ever configured under that name: what is proven came with the failure itself."""
    rig = Rig(facts=paged_facts()).up("other")
    commands = broke_off(rig, configuring(rig), proven=proven)
    assert commands == [Reset("s", 2, scope, fault(F.UNKNOWN, "configure"))]
    rig.lifecycle(commands)
    assert (state_of(rig, "s"), state_of(rig, "other")) == (G.READY, G.READY)


def test_name_that_is_taken_by_what_broke_off_is_reset_and_never_only_released() -> None:
    rig = Rig(SchedulerConfig(max_resets=1, reset_window_ns=WINDOW))
    (reset,) = broke_off(rig, configuring(rig))
    (again,) = rig.send(rig.answer(reset))
    assert isinstance(again, Configure)
    assert broke_off(rig, again) == []  # the budget is spent
    assert rig.view.state is G.FAILED
    rig.at(rig.now + WINDOW)
    (order,) = broke_off(rig, configuring(rig), F.LIFECYCLE)
    assert isinstance(order, Reset)
    rig.lifecycle([order])
    assert rig.view.state is G.READY


def test_trouble_after_the_reset_that_ended_it_is_a_rebuild_again() -> None:
    rig = Rig(SchedulerConfig(max_resets=9), paged_facts())
    (reset,) = broke_off(rig, configuring(rig))
    assert isinstance(reset, Reset)
    (again,) = rig.send(ResetDone("s", reset.generation))
    assert isinstance(again, Configure)
    (order,) = broke_off(rig, again, F.LIFECYCLE)
    assert isinstance(order, Release)
