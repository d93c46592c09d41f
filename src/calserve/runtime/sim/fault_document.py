"""`docs/fault-plan.md`: the format of fault plans, written with the list of fault points itself.

Owns what people are told of each point. Must not know how a fault is carried out: a test holds that every point stands
here, that every example is a plan, and that the page is what this writes.
`python -m calserve.runtime.sim.fault_document > docs/fault-plan.md` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from calserve.runtime.sim.faults import SCHEMA, FaultPoint


@dataclass(frozen=True, slots=True)
class Told:
    """visited: when a visit of the point counts. does: what the board does. expect: what a server makes of it on
    `assumed-lanes`, a session on each chip. value: what `value` stands for, "" for nothing."""

    visited: str
    does: str
    expect: str
    value: str = ""


_JOB, _CODE = "each job", "another code"
POINTS: dict[FaultPoint, Told] = {
    FaultPoint.SUBMIT_BUSY: Told("each submit", "code 17, nothing started", "tried again after a pause", _CODE),
    FaultPoint.SUBMIT_UNAVAILABLE: Told(
        "each submit", "code 18, nothing started", "the job's requests fail; the session is reset", _CODE
    ),
    FaultPoint.SUBMIT_UNSUPPORTED: Told(
        "each submit", "code 27, nothing started", "the job's requests fail; the feature is switched off", _CODE
    ),
    FaultPoint.WAIT_TIMEOUT: Told(
        "each wait for a job", "code 13, though the job may be done", "waited for again; nobody notices", _CODE
    ),
    FaultPoint.CODE_WITH_STATUS: Told(
        _JOB, "it ends with code 14 and status DONE, its KV undefined", "its requests fail; its lanes are fenced", _CODE
    ),
    FaultPoint.STATUS_CCU_EXCEPTION: Told(
        _JOB, "it ends with code 0 and status DONE_CCU_EXCEPTION, its KV undefined", "its requests fail; a reset"
    ),
    FaultPoint.LOGITS_NAN: Told(_JOB, "every logit is NaN", "its requests fail; the generation is rebuilt"),
    FaultPoint.LOGITS_INF: Told(_JOB, "one logit of every row is infinite", "as `logits_nan`"),
    FaultPoint.OUTPUT_SHORT: Told(
        _JOB, "half of each row of logits comes back", "the package is refused; the last good one comes back, if any"
    ),
    FaultPoint.JOB_NEVER_COMPLETES: Told(
        _JOB, "it computes until a reset ends it", "overdue, lost after its grace; the chip is reset, or exit 75"
    ),
    FaultPoint.COMPLETION_LATE: Told(
        _JOB, "KV and output are written late, resets or not", "as a lost job where it is later than the grace",
        "nanoseconds late; 0 for the board's own",
    ),
    FaultPoint.COMPLETION_DOUBLE: Told(
        "each wait for a job", "the same completion is given once more", "the second is no answer: a reset"
    ),
    FaultPoint.COMPLETION_SWAPPED: Told(
        "each wait while another job is done", "of two finished jobs, the other one's completion",
        "both jobs' requests fail; a reset; one job in flight from then on",
    ),
    FaultPoint.COMPLETION_MISNAMED: Told(
        "each wait for a job", "the status names the next generation", "its job never ended: a reset",
        "the generation it names",
    ),
    FaultPoint.DEVICE_LOST: Told(
        _JOB, "the device is gone: code 18 everywhere until a board reset",
        "resets fail, the budget goes, processes end with 75; only switching the board off and on helps",
    ),
    FaultPoint.ALLOCATE_FAILS: Told(
        "each allocation of host buffers", "code 1", "the bring-up of the generation fails, and is tried again", _CODE
    ),
    FaultPoint.MAP_FAILS: Told("each tensor of a job, about six", "code 24", "the job is not taken; a reset", _CODE),
    FaultPoint.SLICE_FAILS: Told("each cut of a tensor", "code 22", "the job's requests fail", _CODE),
    FaultPoint.CSR_FAILS: Told("each register of a job", "code 4", "the job's requests fail; a rebuild", _CODE),
    FaultPoint.UNDO_LOST: Told(
        "each undo of cuts", "code 0, but every cut stays", "the buffers' reset gives 4, and the set is put away"
    ),
    FaultPoint.BUFFER_RESET_FAILS: Told(
        "each reset of host buffers", "code 4, nothing scrubbed", "the set is put away and another allocated", _CODE
    ),
    FaultPoint.KV_CANNOT_ALLOCATE: Told(
        "each question for KV room", "no, although lanes are free", "the job waits until a lane is released"
    ),
    FaultPoint.KV_APPLY_FAILS: Told("each lane of a job", "code 1", "the job's requests fail", _CODE),
    FaultPoint.CONFIGURE_FAILS: Told(
        "each configuration", "code 5, nothing configured", "refused where the package never served, else tried again",
        _CODE,
    ),
    FaultPoint.RESET_FAILS: Told(
        "each reset", "code 25, nothing reset", "the next wider scope that is proven, or exit 75", _CODE
    ),
    FaultPoint.COUNTERS_WRONG: Told(
        "each look at the board's counters", "one job too many is left", "a warning; one job in flight from then on"
    ),
}  # fmt: skip

_HEAD = f"""\
# Fault plans

What goes wrong on the simulated board, and when: `calserve serve --board sim --fault-plan FILE`, or
`calserve soak --wall --fault-plan FILE`. A plan is YAML or JSON and begins with its schema. It has one of two keys.

Written from the list itself (`make docs`); a test holds that every fault point stands here.

## `faults`: exactly these

```yaml
schema: {SCHEMA}
faults:
  - {{point: submit_busy, at_visit: 500}}
  - {{point: logits_nan, at_visit: 800, times: 2}}
  - {{point: completion_late, at_visit: 1200, value: 200_000_000}}
```

- `point`: one of the names below.
- `at_visit` (1): the visit at which it fires for the first time. Visits are counted from 1, for each point by itself,
  from the start of the process; what a visit is stands in the table. Warm-ups visit points too.
- `times` (1): how many visits in a row it fires at: `at_visit` to `at_visit + times - 1`.
- `value` (0): instead of the point's own code or time; 0 leaves it. At most a day in nanoseconds.

At most 10,000 faults. Several of one point are allowed; of two that are due at one visit the first fires.

## `random`: drawn from a seed

```yaml
schema: {SCHEMA}
random: {{seed: 7, activate: 0.5, mean_gap: 8000, late_ms: 200, points: [submit_busy, completion_late]}}
```

- `seed`: 0 to 2^63 - 1. The same seed under the same visits fires the same faults.
- `activate` (0.3): the chance that a point is active at all.
- `mean_gap` (2000): visits of an active point from one firing to the next, on average. Every point has a stream of its
  own: leaving one out moves no other.
- `late_ms` (0): how late a late completion is; 0 for the board's own.
- `points` (all): those that may be drawn.

## Fault points

"Expect" is what a server makes of one on `assumed-lanes` with a session on each chip; without proven resets a reset is
one of the whole configuration, or the process ends with 75 and is started again. `calserve soak --report FILE.md`
measures all of it.

| point | a visit | the board | expect | `value` | example |
| --- | --- | --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(f"{_row(point)}\n" for point in FaultPoint)


def _row(point: FaultPoint) -> str:
    told = POINTS[point]
    extra = ", value: 200_000_000" if point is FaultPoint.COMPLETION_LATE else ""
    example = f"`- {{point: {point.value}, at_visit: 20{extra}}}`"
    return f"| `{point.value}` | {told.visited} | {told.does} | {told.expect} | {told.value or '-'} | {example} |"


if __name__ == "__main__":
    print(page(), end="")
