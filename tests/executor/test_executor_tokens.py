"""Core and executor give what the board gives when driven by hand: mates, lanes and chunks never show."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from executor_rig import ExecutorRig
from harness import Hand, prompt

from calserve.core.board import RowBinding
from calserve.core.config import SchedulerConfig
from calserve.core.job import Task
from calserve.core.outcomes import FinishReason, RefusalKind
from calserve.runtime.contract import GraphContract
from calserve.sampling.params import SamplingParams


def by_hand(rig: ExecutorRig, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """Greedy tokens from encode, submit, wait and argmax alone, one sequence at a time on the warm session."""
    session = rig.steps.ports["s0"].session
    hand = Hand(session, generation=rig.steps.ports["s0"].generation)
    out = []
    for ids in prompts:
        line = hand.line(0)
        out.append(hand.greedy(line, ids, new_tokens))
        hand.release(line)
    return out


def test_executor_100_prompts_equal_direct_submit_and_wait(rig: ExecutorRig) -> None:
    prompts = [prompt(rig.package, 1 + i % 40, salt=i) for i in range(100)]
    expected = by_hand(rig, prompts, 12)
    assert rig.run(prompts, 12) == expected
    rig.assert_nothing_held()


@pytest.mark.slow
@pytest.mark.model
def test_executor_100_prompts_on_the_real_model_equal_direct_submit_and_wait(real_rig: ExecutorRig) -> None:
    prompts = [prompt(real_rig.package, 2 + i % 40, salt=i) for i in range(100)]
    expected = by_hand(real_rig, prompts, 6)
    assert real_rig.run(prompts, 6) == expected
    real_rig.assert_nothing_held()


def lengths(context: int) -> list[int]:
    named = [1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 1024, context - 1]
    return [n for n in named if n < context]


def test_executor_every_prompt_length_gives_the_tokens_of_the_board(rig: ExecutorRig) -> None:
    context = rig.package.context
    for n in lengths(context):
        ids = prompt(rig.package, n, salt=n)
        count = min(4, context - n)
        assert rig.run([ids], count) == by_hand(rig, [ids], count), f"prompt of {n} tokens"
    rig.assert_nothing_held()


@pytest.mark.slow
@pytest.mark.model
def test_executor_every_prompt_length_on_the_real_model_gives_the_tokens_of_the_board(real_rig: ExecutorRig) -> None:
    """Also as a chunked prefill beside a decoding mate: how a prompt is cut never shows."""
    context = real_rig.package.context
    for n in lengths(context):
        ids, count = prompt(real_rig.package, n, salt=n), min(3, context - n)
        expected = by_hand(real_rig, [ids], count)
        assert real_rig.run([ids], count) == expected, f"prompt of {n} tokens"
        real_rig.submit(f"mate-{n}", prompt(real_rig.package, 4, salt=0), 40)
        real_rig.retire_one()
        real_rig.submit(f"chunked-{n}", ids, count)
        real_rig.settle()
        assert [real_rig.outlet.told[f"chunked-{n}"].tokens] == expected, f"prompt of {n} tokens beside a mate"
    real_rig.assert_nothing_held()


@pytest.mark.parametrize("over", [0, 1, 1000])
def test_executor_prompt_without_room_is_refused_before_the_board(rig: ExecutorRig, over: int) -> None:
    context, jobs = rig.package.context, len(rig.specs)
    rig.submit("long", prompt(rig.package, context + over), 1)
    ending = rig.outlet.told["long"].ending
    assert ending is not None
    assert ending.refusal is not None
    assert (ending.reason, ending.refusal.kind) == (FinishReason.REFUSED, RefusalKind.TOO_LONG)
    assert (ending.refusal.limit, ending.refusal.given) == (context, context + over + 1)
    assert len(rig.specs) == jobs
    rig.assert_nothing_held()


def test_executor_empty_prompt_is_refused_before_the_board(rig: ExecutorRig) -> None:
    rig.submit("empty", [], 4)
    ending = rig.outlet.told["empty"].ending
    assert ending is not None
    assert ending.reason is FinishReason.REFUSED
    assert not rig.specs


def test_executor_alone_equals_batched_with_1_to_16_mates_in_every_position(rig: ExecutorRig) -> None:
    ids = prompt(rig.package, 21, salt=900)
    alone = rig.run([ids], 10)[0]
    lanes = rig.package.max_lanes
    for mates in range(1, lanes):
        others = [prompt(rig.package, 3 + 5 * m % 37, salt=m) for m in range(mates)]
        for position in range(mates + 1) if mates in (1, lanes - 1) else (0, mates // 2, mates):
            batch = [*others[:position], ids, *others[position:]]
            assert rig.run(batch, 10)[position] == alone, f"{mates} mates, position {position}"
    rig.assert_nothing_held()


def test_executor_sampled_request_does_not_depend_on_its_mates(rig: ExecutorRig) -> None:
    ids = prompt(rig.package, 9, salt=5)
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=1234)
    alone = rig.run([ids], 12, sampling=sampling)[0]
    for i in range(7):
        rig.submit(f"mate-{i}", prompt(rig.package, 4 + i, salt=70 + i), 12)
    rig.submit("mine", ids, 12, sampling)
    rig.settle()
    assert rig.outlet.told["mine"].tokens == alone


def test_executor_two_sequences_alternated_for_1000_tokens_stay_apart(
    make_rig: Callable[[SchedulerConfig | None], ExecutorRig],
) -> None:
    """Both alive all the time, step by step in one another's presence; one row a job where any row takes any lane."""
    rig = make_rig(None)
    if any(graph.profile.row_binding is RowBinding.FREE for graph in decode_graphs(rig)):
        rig.board.close()
        rig = make_rig(SchedulerConfig(profiles=(1,)))
    count, told = min(500, rig.package.context - 40), 0
    for turn in range(-(-1000 // (2 * count))):
        first, second = prompt(rig.package, 5, salt=2 * turn), prompt(rig.package, 30, salt=2 * turn + 1)
        alone = [rig.run([ids], count)[0] for ids in (first, second)]
        seen = len(rig.specs)
        assert rig.run([first, second], count) == alone
        steps = [{row.request for row in job.spec.rows} for job in rig.specs[seen:]]
        together = sum(len(a | b) == 2 for a, b in pairwise(steps))
        assert together > count // 8, "they must be alive at the same time"
        told += 2 * count
    assert told >= 1000
    rig.assert_nothing_held()


def decode_graphs(rig: ExecutorRig) -> list[GraphContract]:
    graphs = rig.steps.ports["s0"].session.graphs.values()
    return [graph for graph in graphs if Task.DECODE in graph.profile.tasks]


def test_executor_200_random_disconnects_leave_nothing_reserved(rig: ExecutorRig) -> None:
    chance = random.Random(20)
    expected: dict[str, list[int]] = {}
    for i in range(200):
        ids = prompt(rig.package, chance.randrange(1, 50), salt=i)
        rig.submit(f"d{i}", ids, chance.randrange(1, 20))
        expected[f"d{i}"] = ids
        for _ in range(chance.randrange(3)):
            if rig.jobs:
                rig.retire_one()
        gone = f"d{chance.randrange(i + 1)}"
        rig.cancel(gone)
        rig.cancel(gone)
        rig.engine.check_invariants()
    rig.settle()
    told = rig.outlet.told
    assert all(told[name].terminals == 1 for name in expected)
    reasons = [told[name].ending.reason for name in expected]  # type: ignore[union-attr]
    assert reasons.count(FinishReason.CANCELLED) > 20
    assert reasons.count(FinishReason.LENGTH) > 20
    finished = [name for name in expected if told[name].ending.reason is FinishReason.LENGTH]  # type: ignore[union-attr]
    for name in finished[:: max(1, len(finished) // 12)]:
        assert by_hand(rig, [expected[name]], len(told[name].tokens)) == [told[name].tokens]
    rig.assert_nothing_held()


def test_executor_second_request_under_a_name_in_use_changes_nothing_of_the_first(rig: ExecutorRig) -> None:
    mine, other = prompt(rig.package, 5, salt=1), prompt(rig.package, 7, salt=2)
    (expected,) = by_hand(rig, [mine], 6)
    lanes = rig.engine.snapshot(rig.clock()).sessions[0].lanes_total
    for number in range(lanes):
        rig.submit(f"busy{number}", prompt(rig.package, 3, salt=number), 4)
    rig.submit("x", mine, 6)
    rig.submit("x", other, 6)  # while the first one waits for a lane
    while "x" not in rig.outlet.told or len(rig.outlet.told["x"].tokens) < 2:
        rig.retire_one()
    rig.submit("x", other, 6)  # and in the middle of its answer
    rig.settle()
    assert rig.outlet.told["x"].tokens == expected
    assert rig.engine.snapshot(rig.clock()).counters["duplicate_submits"] == 2
    rig.assert_nothing_held()
