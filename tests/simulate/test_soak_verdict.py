"""A clean run that proves little is called weak, and says for want of what."""

from __future__ import annotations

import pytest

from calserve.core.commands import Finish
from calserve.core.events import Tick
from calserve.core.outcomes import FinishReason, Refusal, RefusalKind, Usage
from calserve.simulate.plan import HOUR, MINUTE
from calserve.simulate.result import RunResult
from calserve.simulate.sometimes import PATHS, Sometimes
from calserve.simulate.verdict import Tally, weaknesses

COUNTS = {
    "outputs": 100_000, "output_tokens": 1_200_000, "jobs": 400_000, "wide_jobs": 100_000, "requests": 200_000,
    "long_prompts": 2_000, "hours": 24, "queue_full_hours": 24,
}  # fmt: skip


def tally(**counts: int) -> Tally:
    """A day that shows just enough, but for `counts`."""
    whole = Tally()
    seen = dict.fromkeys(PATHS, 1)
    whole.add(RunResult(virtual_ns=24 * HOUR, counts={**COUNTS, **counts}, sometimes=seen))
    return whole


def test_day_that_shows_just_enough_is_not_weak() -> None:
    assert weaknesses(tally()) == []


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"output_tokens": 1_190_000}, ["mean output is 11.9 tokens, not 12.0"]),
        ({"wide_jobs": 95_999}, ["24 % of jobs have four rows or more, not 25 %"]),
        ({"requests": 199_999, "long_prompts": 2_000}, ["199999 requests in 24.0 h, not 200000"]),
        ({"long_prompts": 1_000}, ["0.5 % of prompts take half the context, not 1 %"]),
        ({"queue_full_hours": 23}, ["the queue was full in 23 of 24 hours"]),
    ],
    ids=str,
)
def test_day_that_lacks_one_thing_is_told_which(counts: dict[str, int], said: list[str]) -> None:
    assert weaknesses(tally(**counts)) == said


@pytest.mark.parametrize("path", PATHS)
def test_day_that_never_took_a_path_is_told_which(path: str) -> None:
    day = tally()
    day.sometimes[path] = 0
    assert weaknesses(day) == [f"a rare path was never taken: {path}"]


def test_short_runs_are_held_against_their_time_together() -> None:
    """15 runs of 4 minutes are an hour: one of them with a full queue will do, and none will not."""
    whole = Tally()
    for i in range(15):
        counts = {name: count // 10 for name, count in COUNTS.items()} | {"hours": 1, "queue_full_hours": int(i == 7)}
        whole.add(RunResult(virtual_ns=4 * MINUTE, counts=counts, sometimes=dict.fromkeys(PATHS, 1)))
    assert weaknesses(whole) == []
    whole.counts["queue_full_hours"] = 0
    assert weaknesses(whole) == ["the queue was full in 0 of 1 hours"]


def test_full_queue_is_counted_by_the_hour_and_not_in_what_is_left_over() -> None:
    seen = Sometimes()
    full = Refusal(RefusalKind.QUEUE_FULL, limit=1, given=2)
    for at_ns in (HOUR // 2, HOUR // 2 + 1, 3 * HOUR, 3 * HOUR + MINUTE, 4 * HOUR + 1):
        seen(at_ns, Tick(), (Finish("r", FinishReason.REFUSED, Usage(0, 0), full),))
    assert seen.seen["queue_full"] == 5
    assert seen.load(4 * HOUR + MINUTE) == {"hours": 4, "queue_full_hours": 2, "paired_jobs": 0}
    assert seen.load(MINUTE) == {"hours": 1, "queue_full_hours": 1, "paired_jobs": 0}
