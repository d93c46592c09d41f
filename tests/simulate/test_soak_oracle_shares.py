"""Planted faults in who is served before whom (I9). Costs are by hand: a request has 3 prompt tokens and one output, so
it is charged 3 + 4 and costs the board 3."""

from __future__ import annotations

from dataclasses import replace

import pytest
from soak_oracle_rig import MS, WORLD, History, ask

CROWDED = replace(
    WORLD,
    lanes_per_session=2,
    tenant_lane_share_percent=100,
    max_waiting_requests=1000,
    max_waiting_prompt_tokens=10_000,
    host_slack_ns=10**12,  # a board that stands idle is not looked at here
    passed_over_bound=0,
)


def history_of(**changes: object) -> History:
    return History(replace(CROWDED, **changes))  # type: ignore[arg-type]


def crowd(history: History, tenants: str, count: int = 200, new: int = 1) -> None:
    """`count` requests of each tenant, a0, a1, ..., submitted now."""
    for number in range(count):
        for tenant in tenants:
            request = ask(f"{tenant}{number}", tenant=tenant, max_new_tokens=new, submitted_ns=history.now)
            history.submit(request)


def serve(history: History, order: str) -> None:
    """One request after another, by tenant, in the order of their numbers."""
    served = dict.fromkeys(order, 0)
    for tenant in order:
        history.whole(f"{tenant}{served[tenant]}", 0)
        served[tenant] += 1


def shares(order: str, **changes: object) -> History:
    history = history_of(**changes).at(10)
    crowd(history, "ab")
    serve(history.at(200), order)  # by 200 ms the server surely knows of all of them
    return history


@pytest.mark.parametrize("world", [{}, {"sessions": {"s0": "m", "s1": "m"}}], ids=["alone", "two copies"])
class TestShares:
    """In one session, and where two serve the model: what is served here all happens in the first."""

    def test_equal_turns_of_equal_tenants_find_nothing(self, world: dict[str, object]) -> None:
        history = shares("ab" * 80, **world)
        assert history.found == [], history.say()

    def test_share_that_ignores_weights_is_found(self, world: dict[str, object]) -> None:
        assert set(shares("ab" * 80, tenant_weights={"a": 8}, **world).found) == {"I9"}
        assert shares("aaaaaaaab" * 20, tenant_weights={"a": 8}, **world).found == []

    def test_bound_is_three_of_the_one_and_two_of_the_other_on_two_lanes(self, world: dict[str, object]) -> None:
        """3 x 7 + 2 x 7 = 35: eleven of b at 3 are within it, twelve are not. After them a is served, for its wait is
        only known by then where its session was not."""
        assert shares("b" * 11 + "a" * 4, **world).found == []
        assert shares("b" * 12 + "a" * 4, **world).found == ["I9"]

    def test_tenant_that_comes_back_makes_nothing_good(self, world: dict[str, object]) -> None:
        """b had nobody waiting while a was served."""
        history = history_of(**world).at(10)
        crowd(history, "a")
        serve(history.at(200), "a" * 60)
        crowd(history, "b")
        history.now += 200 * MS
        for number in range(40):
            history.whole(f"b{number}", 0)
        for number in range(60, 64):
            history.whole(f"a{number}", 0)
        assert set(history.found) == {"I9"}, history.say()

    def test_tenant_with_nobody_waiting_is_owed_nothing(self, world: dict[str, object]) -> None:
        history = history_of(**world).at(10)
        crowd(history, "b")
        serve(history.at(200), "b" * 150)
        history.submit(ask("a0", tenant="a", max_new_tokens=1, submitted_ns=history.now))
        history.whole("a0", 0)
        assert history.found == []

    def test_who_was_just_submitted_may_not_be_known_to_the_server(self, world: dict[str, object]) -> None:
        history = history_of(**world).at(10)
        crowd(history, "ab")
        serve(history.at(20), "b" * 80 + "a" * 4)  # the last of b ends 100 ms after the submits
        assert history.found == [], history.say()


def test_tenant_that_starves_is_found_where_lanes_are_capped() -> None:
    assert shares("a" + "b" * 80, tenant_lane_share_percent=50).found[:1] == ["I9"]


def test_tenant_with_a_lane_at_its_cap_may_be_passed() -> None:
    for changes in ({"tenant_lane_share_percent": 50}, {"tenant_max_active": {"a": 1}}):
        history = history_of(**changes).at(10)
        crowd(history, "ab")
        history.at(200).run(history.row("a0", 1))
        serve(history, "b" * 80)
        assert history.found == [], history.say()


def capped(percent: int, waiting: str, *, goes_on: bool = True) -> History:
    """b has three lanes of four, and then each of them has one more job, or not."""
    history = history_of(lanes_per_session=4, tenant_lane_share_percent=percent).at(10)
    crowd(history, waiting, count=20)
    history.at(200)
    crowd(history, "b", count=20, new=3)
    history.at(400)
    for lane in range(3):
        history.run(history.row(f"b{lane}", lane))
    for lane in range(3 if goes_on else 1):
        history.run(history.row(f"b{lane}", lane, 3))
    history.run(history.row("b3", 3))
    return history


def test_lane_beyond_the_cap_while_another_waits_is_found() -> None:
    history = capped(50, "a")
    assert history.found == ["I9"]
    assert "b had 3 lanes when b2 began" in history.say()
    assert capped(75, "a").found == []


def test_lane_beyond_the_cap_while_nobody_waits_is_right() -> None:
    assert capped(50, "").found == []


def test_lanes_whose_holders_may_have_ended_are_not_counted() -> None:
    assert capped(50, "a", goes_on=False).found == []
