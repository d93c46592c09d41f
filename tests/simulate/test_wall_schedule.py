"""The schedule of a soak on real time: seeded, open-loop, and with every kind of client in it."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from calserve.runtime.sim.oracle import greedy_tokens
from calserve.simulate.wall.cases import Case, Expected, KnownCases, SimCases
from calserve.simulate.wall.schedule import BAD_FIELDS, SHARES, Arrival, Kind, arrivals

CASES = SimCases("sim-model", 2048)


def drawn(seed: int, rate: float = 20.0, until_s: float = 300.0) -> list[Arrival]:
    return list(arrivals(seed, rate, until_s, CASES))


def test_schedule_same_seed_is_the_same_and_another_is_not() -> None:
    assert drawn(1) == drawn(1)
    assert drawn(1)[:50] != drawn(2)[:50]


def test_schedule_keeps_its_rate_its_end_and_its_order() -> None:
    many = drawn(3)
    # 300 s at 20 a second, and 14 bursts of 24: a Poisson count's standard deviation is some 78.
    assert abs(len(many) - (6000 + 14 * 24)) < 400
    assert all(a.at_s <= b.at_s and a.number + 1 == b.number for a, b in pairwise(many))
    assert many[-1].at_s < 300.0


def test_schedule_has_bursts_that_arrive_at_one_moment() -> None:
    moments = Counter(arrival.at_s for arrival in drawn(3))
    assert sorted(count for count in moments.values() if count > 2) == [25] * 14


def test_schedule_has_every_kind_in_its_share() -> None:
    assert sum(SHARES.values()) == 100
    many = drawn(4, rate=50)
    kinds = Counter(arrival.kind for arrival in many)
    for kind, percent in SHARES.items():
        assert kinds[kind] == pytest.approx(len(many) * percent / 100, rel=0.35), kind
    assert {arrival.bad for arrival in many if arrival.kind is Kind.BAD} == set(range(len(BAD_FIELDS)))


def test_schedule_prompts_are_all_different_so_that_a_stranger_s_token_shows() -> None:
    prompts = [arrival.case.prompt for arrival in drawn(5) if len(arrival.case.prompt) > 8]
    assert len(set(prompts)) == len(prompts)


def test_sim_cases_answer_is_the_oracles_as_text() -> None:
    tokens = greedy_tokens((0x40, 0x41), 4, 256)
    assert not set(tokens) & {0xC0, 0xC1, *range(0xF5, 0x100)}  # so that each token is one byte of the text
    expected = CASES.expect(Case((0x40, 0x41), 4))
    assert expected == Expected(bytes(tokens).decode("utf-8", "replace"), "length", 4)


def test_sim_cases_answer_stops_at_an_end_token_unless_it_is_long() -> None:
    chance = random.Random(0)
    short = next(
        case
        for _ in range(10_000)
        if CASES.expect(case := Case(tuple(chance.randrange(256) for _ in range(4)), 32)).finish == "stop"
    )
    expected = CASES.expect(short)
    assert expected.tokens <= 32
    longer = CASES.expect(Case(short.prompt, 32, is_long=True))
    assert (longer.finish, longer.tokens) == ("length", 32)
    assert longer.text.startswith(expected.text.rstrip("\N{REPLACEMENT CHARACTER}"))


def test_sim_cases_fit_the_context_whatever_it_is() -> None:
    small = SimCases("sim-model", 64)
    chance = random.Random(1)
    for i in range(500):
        case = small.draw(chance, is_long=i % 3 == 0)
        assert case.max_tokens >= 1
        assert len(case.prompt) + case.max_tokens <= 64


def test_known_cases_give_back_what_they_learned_and_nothing_else() -> None:
    known = KnownCases(7, 320, 512)
    with pytest.raises(KeyError):
        known.expect(known.goldens[0])
    for i, case in enumerate(known.unknown):
        known.learn(case, Expected(f"text {i}", "length", 1))
    assert known.unknown == ()
    chance = random.Random(2)
    for i in range(100):
        case = known.draw(chance, is_long=i % 2 == 0)
        assert known.expect(case).text.startswith("text")
        assert len(case.prompt) + case.max_tokens <= 512
