"""Whether a plan that somebody wrote, or changed, can be run at all: every figure of it in its range.

Owns: the range of every figure of a plan, and the names there are. Must not know: records, how a run is carried out.
A drawn plan is inside all of it; a plan from a file is held against it before anything runs.

Ranges are wide: what a run makes of odd figures is the oracle's to say. They keep out what no run can be made of, and
what would never come to an end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from calserve.runtime.contract import CAPABILITIES
from calserve.runtime.sim import PROFILES, FaultPoint, ProfileError, SimProfile
from calserve.simulate.boards import board_parts, profile_of
from calserve.simulate.oddities import ODDITIES
from calserve.simulate.plan import (
    HABITS,
    HOUR,
    HOURS_MAX,
    MINUTE,
    SECOND,
    SEED_MAX,
    BoardPlan,
    Era,
    FaultsPlan,
    ListedFault,
    Pace,
    RunPlan,
    ServerPlan,
    TrafficPlan,
)

DAY = 24 * HOUR
MILLISECOND = SECOND // 1000
_CAP = HOURS_MAX * HOUR
_COUNT = (1, 1 << 40)
_STEP = (0, MINUTE)

Range = tuple[float, float]
# Of every number, and of every number in a tuple of them, by class and field.
RANGES: Mapping[type, Mapping[str, Range]] = {
    RunPlan: {"seed": (0, SEED_MAX)},
    Era: {
        "number": (0, HOURS_MAX), "safety_ns": (1, _CAP), "liveness_ns": (1, _CAP), "crashes_ns": (0, _CAP),
        "replace_at_ns": (0, _CAP), "bad_load_at_ns": (0, _CAP), "unload_at_ns": (0, _CAP), "odd_rate": (0.001, 1000),
    },
    BoardPlan: {"context": (32, 1 << 16), "profiles": (1, 64), "sessions": (1, 64), "tile": (1, 4096)},
    ServerPlan: {
        "max_in_flight": (1, 2), "max_waiting_requests": (1, 100_000), "max_waiting_prompt_tokens": (1, 1 << 30),
        "batching_window_ns": (0, SECOND), "prefill_chunk_tokens": (1, 1 << 20), "max_resets": (0, 10_000),
        "reset_window_ns": (1, DAY), "execution_deadline_floor_ns": (MILLISECOND, HOUR),
        "overdue_grace_ns": (MILLISECOND, HOUR), "queue_deadline_ns": (MILLISECOND, HOUR),
        "recovery_drain_ns": (0, HOUR), "deadline_default_ns": (MILLISECOND, DAY),
        "tenant_lane_share_percent": (1, 100), "lifecycle_deadline_ns": (MILLISECOND, HOUR),
    },
    FaultsPlan: {"mean_gap": _COUNT, "late_ns": (0, DAY), "after_ns": (0, _CAP)},
    ListedFault: {"at_visit": _COUNT, "times": _COUNT, "value": (0, DAY)},
    TrafficPlan: {
        "burst_gap_ns": (100 * MILLISECOND, DAY), "burst_size": (1, 2_000), "burst_ns": (1, HOUR),
        "storm_gap_ns": (SECOND, _CAP), "storm_size": (1, 2_000), "mean_output": (1, 1 << 16),
    },
    Pace: {
        "wake": _STEP, "prepare": _STEP, "submit": _STEP, "d2h": _STEP, "sample": _STEP, "deliver": _STEP,
        "warm_step_ns": (MILLISECOND, HOUR), "hiccup_every": _COUNT, "hiccup_ns": _STEP,
    },
}  # fmt: skip
_POINTS = tuple(point.value for point in FaultPoint)
# Of every word, and of every word in a tuple of them. `base` depends on the plan, and the profile's text is its own.
NAMES: Mapping[type, Mapping[str, tuple[str, ...]]] = {
    BoardPlan: {"cut": tuple(CAPABILITIES), "assumes": tuple(CAPABILITIES), "dtype": ("float32", "bfloat16")},
    FaultsPlan: {"points": _POINTS},
    ListedFault: {"point": _POINTS},
    TrafficPlan: {"habits": HABITS},
    Era: {"oddities": tuple(ODDITIES)},
}
ITEMS_MAX = 10_000


def doubt_about_plan(plan: RunPlan) -> str:
    """Why this plan cannot be run, as a clause that begins with the key and ends with a full stop; "" when it can."""
    return next(_doubts(plan), "")


def _doubts(plan: RunPlan) -> Iterator[str]:
    if not 1 <= len(plan.eras) <= HOURS_MAX:
        yield f"plan.eras are {len(plan.eras)}, not 1 to {HOURS_MAX}."
    yield from _wrong_figures(plan, "plan")
    numbers = [era.number for era in plan.eras]
    if len(set(numbers)) != len(numbers):
        yield f"plan.eras have the number {max(numbers, key=numbers.count)} twice."
    if plan.duration_ns > _CAP + HOUR:
        yield f"plan.eras are {plan.duration_ns / HOUR:.4g} hours in all, not at most {HOURS_MAX}."
    known: dict[BoardPlan, SimProfile | str] = {}
    for at, era in enumerate(plan.eras):
        if era.board not in known:
            known[era.board] = _board(era.board, plan.profile)
        board = known[era.board]
        yield from _wrong_board(f"plan.eras[{at}]", era, board)


def _wrong_figures(value: Any, where: str) -> Iterator[str]:
    """Of a dataclass and what is in it, in the order in which it is written."""
    ranges, names = RANGES.get(type(value), {}), NAMES.get(type(value), {})
    for each in fields(value):
        given, key = getattr(value, each.name), f"{where}.{each.name}"
        items = given if isinstance(given, tuple) else (given,)
        if len(items) > ITEMS_MAX:
            yield f"{key} has {len(items)} items, not at most {ITEMS_MAX}."
            continue
        if isinstance(value, Pace) and isinstance(given, tuple) and given[0] > given[1]:
            yield f"{key} is {given[0]} to {given[1]}, which is backwards."
        for at, item in enumerate(items):
            own = f"{key}[{at}]" if isinstance(given, tuple) else key
            if is_dataclass(item):
                yield from _wrong_figures(item, own)
            elif each.name in ranges and not _is_in(item, ranges[each.name]):
                low, high = ranges[each.name]
                yield f"{own} is {item}, not {low} to {high}."
            elif each.name in names and item not in names[each.name]:
                yield f"{own} is {str(item)[:60]!r}, which there is not."


def _is_in(value: float, bounds: Range) -> bool:
    return math.isfinite(value) and bounds[0] <= value <= bounds[1]


def _board(board: BoardPlan, own: str) -> SimProfile | str:
    """What a run would make of it, or why it can make nothing of it."""
    try:
        profile_of(board.base, own)
    except ProfileError as error:
        return f"base: {error}"
    try:
        return board_parts(board, own).profile
    except ProfileError as error:
        return f"{error}"
    except KeyError as error:
        return f"profiles: there is no decode time for {error} rows."


def _wrong_board(where: str, era: Era, profile: SimProfile | str) -> Iterator[str]:
    """What only the board of an era can tell."""
    if isinstance(profile, str):
        yield f"{where}.board: {profile}"
        return
    if profile.name not in PROFILES and not era.board.is_served:
        yield f"{where}.board.is_served is false, and a profile of one's own is run with the package it serves."
    if era.board.sessions not in (1, profile.chips):
        yield f"{where}.board.sessions is {era.board.sessions}, not 1, or one for each of {profile.chips} chips."
    elif era.board.sessions > 1 and 1 not in profile.session_chips:
        yield f"{where}.board.sessions is {era.board.sessions}, but {profile.name} has no graph for one chip."
    if era.server.max_in_flight > profile.max_in_flight:
        yield f"{where}.server.max_in_flight is {era.server.max_in_flight}, and its board has {profile.max_in_flight}."
    length_ns = era.safety_ns + era.liveness_ns
    for name in ("crashes_ns", "replace_at_ns", "bad_load_at_ns", "unload_at_ns"):
        late = next((at for at in getattr(era, name) if at >= length_ns), None)
        if late is not None:
            yield f"{where}.{name} has {late}, and the era is {length_ns} ns long."
