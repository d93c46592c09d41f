"""Which named things go wrong, and when: a plan as data, consulted by the board at every fault point.

Owns: the list of fault points, the count of visits and firings, and plans as files. Must not know: what a fault
does (that stands where it is visited). Two phases: a point is *activated* for a run, and an active point *fires*
on some of its visits. Life of a plan: written by hand, in a file or drawn from a seed, given to one device, healed
at the end of the safety phase.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import msgspec

from calserve import strict_yaml

SCHEMA = "calserve-fault-plan/v1"


class FaultPlanError(ValueError):
    """A fault plan that cannot be; the text is one sentence that names the file and the key."""


class FaultPoint(Enum):
    """Where a board can fail, and with what. `value` of a `Fault` replaces the code or duration given here."""

    SUBMIT_BUSY = "submit_busy"  # submit: code 17, nothing started
    SUBMIT_UNAVAILABLE = "submit_unavailable"  # submit: code 18, nothing started
    SUBMIT_UNSUPPORTED = "submit_unsupported"  # submit: code 27, nothing started
    WAIT_TIMEOUT = "wait_timeout"  # wait: code 13 although the job may be done
    CODE_WITH_STATUS = "code_with_status"  # job: over with code 14 and status DONE, its KV block undefined
    STATUS_CCU_EXCEPTION = "status_ccu_exception"  # code 0, status DONE_CCU_EXCEPTION, the KV block undefined
    LOGITS_NAN = "logits_nan"  # job: every logit is NaN
    LOGITS_INF = "logits_inf"  # job: one logit of every row is infinite
    OUTPUT_SHORT = "output_short"  # job: half of each row of logits comes back, the view says so
    JOB_NEVER_COMPLETES = "job_never_completes"  # job: computing until a reset ends it
    COMPLETION_LATE = "completion_late"  # job: KV and output are written `value` ns late, resets or not
    COMPLETION_DOUBLE = "completion_double"  # wait: the same completion is given once more
    COMPLETION_SWAPPED = "completion_swapped"  # wait: of two finished jobs, the other one's completion
    COMPLETION_MISNAMED = "completion_misnamed"  # wait: the status names the next generation, or generation `value`
    DEVICE_LOST = "device_lost"  # job: the device is gone, code 18 everywhere until a board reset
    ALLOCATE_FAILS = "allocate_fails"  # allocate: code 1
    MAP_FAILS = "map_fails"  # map: code 24
    SLICE_FAILS = "slice_fails"  # slice: code 22
    CSR_FAILS = "csr_fails"  # set_csr: code 4
    UNDO_LOST = "undo_lost"  # undo_slices: code 0, but every slice stays, so that the reset of the buffers gives 4
    BUFFER_RESET_FAILS = "buffer_reset_fails"  # reset of host buffers: code 4, nothing scrubbed
    KV_CANNOT_ALLOCATE = "kv_cannot_allocate"  # can_allocate: False although lanes are free
    KV_APPLY_FAILS = "kv_apply_fails"  # apply: code 1
    CONFIGURE_FAILS = "configure_fails"  # configure: code 5, nothing configured
    RESET_FAILS = "reset_fails"  # board reset: code 25, nothing reset
    COUNTERS_WRONG = "counters_wrong"  # counters: one job too many is left

    __hash__ = object.__hash__  # points are looked up several times a job; nothing iterates over a set of them


_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """Fire on visits `at_visit` .. `at_visit + times - 1` (counted from 1) of `point`. value: see FaultPoint."""

    point: FaultPoint
    at_visit: int = 1
    times: int = 1
    value: int = 0

    def __post_init__(self) -> None:
        if self.at_visit < 1 or self.times < 1 or self.value < 0:
            raise FaultPlanError(f"a fault needs at_visit >= 1, times >= 1 and value >= 0, not {self}.")


@dataclass(slots=True)
class _Drawn:
    """An activated point of a random plan: fires at `next_visit`, then after a gap drawn from its own stream."""

    stream: random.Random
    mean_gap: int
    value: int
    next_visit: int = 0

    def draw(self, after_visit: int) -> None:
        self.next_visit = after_visit + self.stream.randint(1, 2 * self.mean_gap - 1)


class FaultPlan:
    """Explicit faults, drawn faults, or none.

    on_fire: told of every firing, as it happens.

    Invariants: the same plan under the same visits fires the same faults; visits of one point never move the
    firings of another.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.visits: dict[FaultPoint, int] = {}
        self.fired: list[tuple[FaultPoint, int]] = []
        self.active: frozenset[FaultPoint] = frozenset()
        self.on_fire: Callable[[FaultPoint], None] | None = None
        self._listed: dict[FaultPoint, list[Fault]] = {}
        self._drawn: dict[FaultPoint, _Drawn] = {}
        self._draw: dict[str, Any] | None = None
        for fault in faults:
            self._listed.setdefault(fault.point, []).append(fault)
        self.active = frozenset(self._listed)

    def visit(self, point: FaultPoint) -> Fault | None:
        """Count a visit; the fault to carry out now, or None."""
        if point not in self.active:
            return None
        count = self.visits[point] = self.visits.get(point, 0) + 1
        fault = self._due(point, count)
        if fault is not None:
            self.fired.append((point, count))
            if self.on_fire is not None:
                self.on_fire(point)
        return fault

    def heal(self) -> None:
        """No fault fires from here on: the liveness phase."""
        self.active = frozenset()

    def describe(self) -> dict[str, Any]:
        """The plan as plain values that `load_fault_plan` takes back: what a record keeps of it."""
        if self._draw is not None:
            return {"schema": SCHEMA, "random": dict(self._draw)}
        faults = [fault for listed in self._listed.values() for fault in listed]
        listed = [{"point": f.point.value, "at_visit": f.at_visit, "times": f.times, "value": f.value} for f in faults]
        return {"schema": SCHEMA, "faults": listed}

    def _due(self, point: FaultPoint, count: int) -> Fault | None:
        for fault in self._listed.get(point, ()):
            if fault.at_visit <= count < fault.at_visit + fault.times:
                return fault
        drawn = self._drawn.get(point)
        if drawn is None or count < drawn.next_visit:
            return None
        drawn.draw(count)
        return Fault(point, count, value=drawn.value)


def random_plan(
    seed: int,
    points: Iterable[FaultPoint] = FaultPoint,
    activate: float = 0.3,
    mean_gap: int = 2000,
    late_ns: int = 0,
    gaps: Mapping[FaultPoint, int] = MappingProxyType({}),
) -> FaultPlan:
    """A plan from a seed.

    activate: chance that a point is active in this run. mean_gap: visits of a point between two firings, on
    average; `gaps` has other means for single points. late_ns: delay of a late completion, 0 for the board's own.
    """
    if not 0 <= activate <= 1 or mean_gap < 1:
        raise FaultPlanError(f"activate must be in 0..1 and mean_gap >= 1, not {activate} and {mean_gap}.")
    plan, points = FaultPlan(), tuple(points)
    late_ms = late_ns // _NS_PER_MS if late_ns % _NS_PER_MS == 0 else late_ns / _NS_PER_MS
    names = [point.value for point in points]
    plan._draw = {"seed": seed, "activate": activate, "mean_gap": mean_gap, "late_ms": late_ms, "points": names}
    for point in points:
        # A string seed is hashed by `random` itself, so PYTHONHASHSEED cannot move it.
        stream = random.Random(f"{seed}/{point.value}")
        if stream.random() < activate:
            value = late_ns if point is FaultPoint.COMPLETION_LATE else 0
            drawn = plan._drawn[point] = _Drawn(stream, gaps.get(point, mean_gap), value)
            drawn.draw(0)
    plan.active = frozenset(plan._drawn)
    return plan


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class _Listed(_Section, frozen=True):
    """value: a code, or a duration of at most a day in ns; 0 for the point's own."""

    point: FaultPoint
    at_visit: Count = 1
    times: Count = 1
    value: Annotated[int, msgspec.Meta(ge=0, le=86_400_000_000_000)] = 0


class _Random(_Section, frozen=True):
    """The arguments of `random_plan`; without points, all of them."""

    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    activate: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3
    mean_gap: Count = 2000
    late_ms: Annotated[float, msgspec.Meta(ge=0, le=86_400_000)] = 0
    points: Annotated[tuple[FaultPoint, ...], msgspec.Meta(min_length=1, max_length=100)] | None = None


class _File(_Section, frozen=True):
    schema: str
    faults: Annotated[tuple[_Listed, ...], msgspec.Meta(max_length=10_000)] | None = None
    random: _Random | None = None


def load_fault_plan(path_or_text: Path | str) -> FaultPlan:
    """A plan written down as YAML or JSON: faults by visit, or the arguments of a random one.

    path_or_text: a text with a line break or an opening brace is the plan itself, anything else names its file.

    Raises:
        FaultPlanError: one sentence naming the file, where there is one, and the key.
    """
    is_text = isinstance(path_or_text, str) and ("\n" in path_or_text or path_or_text.lstrip().startswith("{"))
    where = "the fault plan" if is_text else str(path_or_text)
    try:
        text = str(path_or_text) if is_text else strict_yaml.read_text(Path(path_or_text), "fault plan")
        tree = strict_yaml.parse(text)
        if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
            raise strict_yaml.Wrong(f"must be a mapping that starts with 'schema: {SCHEMA}'.")
        file = strict_yaml.convert(tree, _File)
        if (file.faults is None) is (file.random is None):
            raise strict_yaml.Wrong("needs one of faults (a list) and random (a seed).")
    except strict_yaml.Wrong as error:
        raise FaultPlanError(f"{where}: {error}") from None
    if (drawn := file.random) is not None:
        late_ns = round(drawn.late_ms * _NS_PER_MS)
        return random_plan(drawn.seed, drawn.points or FaultPoint, drawn.activate, drawn.mean_gap, late_ns)
    return FaultPlan(Fault(f.point, f.at_visit, f.times, f.value) for f in file.faults or ())
