"""A failing run made smaller: fewer faults, fewer habits, less time, as long as it fails the same way.

Owns: the order of attempts and their bound. Must not know: what the failure is, beyond its first word. Because every
purpose has a stream of its own, leaving one thing out moves nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from calserve.simulate.plan import SECOND, Era, RunPlan
from calserve.simulate.result import RunResult
from calserve.simulate.run import Run

ATTEMPTS_MAX = 60
# Eras are made smaller one by one only where so few are left: a run of many costs too much to be tried often.
SMALL_ERAS_MAX = 3


def kind_of(result: RunResult) -> str:
    """What failed, in a word: the invariant, or the last line of a traceback."""
    if not result.violations:
        return ""
    first = result.violations[0]
    word = first.split(":", 1)[0]
    return first.strip().splitlines()[-1][:60] if word == "crash" else word


def shrink(
    plan: RunPlan,
    kind: str,
    attempts: int = ATTEMPTS_MAX,
    run: Callable[[RunPlan], RunResult] = lambda plan: Run(plan).run(),
) -> RunPlan:
    """The smallest plan found that still fails with `kind`; at most `attempts` runs."""
    left = attempts
    is_smaller = True
    while is_smaller and left > 0:
        is_smaller = False
        for candidate in _candidates(plan):
            if left == 0:
                break
            left -= 1
            if kind_of(run(candidate)) == kind:
                plan, is_smaller = candidate, True
                break
    return plan


def _candidates(plan: RunPlan) -> Iterator[RunPlan]:
    """Largest cuts first."""
    if len(plan.eras) > 1:
        # the last one is where it failed; a long run is not run again before what is cheap was tried
        group = max((at for at, era in enumerate(plan.eras) if not era.keeps_device), default=0)
        half = len(plan.eras) // 2
        for start in sorted({len(plan.eras) - 1, group, half} - {0}, reverse=True):
            yield replace(plan, eras=_afresh(plan.eras[start:]))
    if len(plan.eras) > SMALL_ERAS_MAX:
        return
    for at, era in enumerate(plan.eras):
        for smaller in _smaller_eras(era):
            yield replace(plan, eras=(*plan.eras[:at], smaller, *plan.eras[at + 1 :]))


def _afresh(eras: tuple[Era, ...]) -> tuple[Era, ...]:
    """The first of them on a new device."""
    return (replace(eras[0], keeps_device=False), *eras[1:])


def _smaller_eras(era: Era) -> Iterator[Era]:
    if era.safety_ns > 4 * SECOND:
        yield replace(era, safety_ns=era.safety_ns // 2)
    points = era.faults.points
    if len(points) > 1:
        half = len(points) // 2
        yield replace(era, faults=replace(era.faults, points=points[:half]))
        yield replace(era, faults=replace(era.faults, points=points[half:]))
    if era.crashes_ns:
        yield replace(era, crashes_ns=())
    if era.replace_at_ns:
        yield replace(era, replace_at_ns=())
    if era.bad_load_at_ns:
        yield replace(era, bad_load_at_ns=())
    if era.unload_at_ns:
        yield replace(era, unload_at_ns=())
    if era.oddities:
        yield replace(era, oddities=())
    for oddity in era.oddities if len(era.oddities) > 1 else ():
        yield replace(era, oddities=tuple(each for each in era.oddities if each != oddity))
    for point in points:
        yield replace(era, faults=replace(era.faults, points=tuple(p for p in points if p != point)))
    habits = era.traffic.habits
    if habits:
        yield replace(era, traffic=replace(era.traffic, habits=()))
    for habit in habits:
        yield replace(era, traffic=replace(era.traffic, habits=tuple(h for h in habits if h != habit)))
    if era.liveness_ns > 40 * SECOND:
        yield replace(era, liveness_ns=era.liveness_ns // 2)
    if era.traffic.burst_size > 2:
        yield replace(era, traffic=replace(era.traffic, burst_size=era.traffic.burst_size // 2))
