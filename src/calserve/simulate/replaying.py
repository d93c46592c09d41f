"""A record run again: whether the same comes of it, and where not, why that may be.

Owns: the comparison and its sentences. Must not know: how a run works inside, how a person is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from calserve.progress import Progress
from calserve.simulate.plan import MINUTE
from calserve.simulate.record import UNFINISHED, VIOLATED, Record, made_here
from calserve.simulate.result import RunResult
from calserve.simulate.run import Run
from calserve.simulate.soak import CHECK_EVERY, Minutes

CHANGED = "The record was changed after it was written"


@dataclass(frozen=True, slots=True)
class Replayed:
    """is_same: every hash equal, and a violation now where one was recorded, and only there. differs_in_era: the first
    whose hash is another; None when none is, or when the recorded run ended before it had one. violations: of the run
    made now."""

    is_same: bool
    differs_in_era: int | None
    violations: list[str]
    explanation: str


def replay(
    record: Record, progress: Progress, check_every: int = CHECK_EVERY, *, is_as_written: bool = True
) -> Replayed:
    """Run a record's plan again. is_as_written: see `record.is_as_written`; where not, the explanation says so.

    Of a run that was cut off, only the eras it had come to are compared.
    """
    with progress.step("Virtual minutes", record.plan.duration_ns // MINUTE, "min") as step:
        result = Run(record.plan, check_every, Minutes(step.advance)).run()
    pairs = list(zip(record.hashes, result.hashes, strict=False))
    differs = next((number for number, (then, now) in enumerate(pairs) if then != now), None)
    is_cut = record.verdict in UNFINISHED
    is_step_same = differs is None and (is_cut or len(record.hashes) == len(result.hashes))
    is_verdict_same = is_cut or (record.verdict == VIOLATED) == bool(result.violation_count)
    if not is_step_same:
        told = _why_other_steps(record, is_as_written)
    elif not is_verdict_same:
        told = _why_other_verdict(record, result, is_as_written)
    elif is_cut:
        told = f"Its {len(pairs)} whole eras came again, byte for byte; it was {record.verdict} before its end."
    else:
        told = "Every step came again, byte for byte."
        told += "" if is_as_written else f" {CHANGED}, in something that steps do not show."
    return Replayed(is_step_same and is_verdict_same, differs, result.violations, told)


def _why_other_steps(record: Record, is_as_written: bool) -> str:
    """What can be told apart is; where it cannot, all there is."""
    here, made = made_here(), record.made
    if not is_as_written:
        return f"It comes out otherwise. {CHANGED}: its hashes are not those of its plan, or not of its commit."
    if here.commit != made.commit:
        return (
            f"It was recorded at commit {made.commit} and this is {here.commit}: the code decides otherwise now, or "
            "the record does not belong to its plan or that commit."
        )
    if here.python != made.python:
        return f"It was recorded under Python {made.python}, this is {here.python}."
    reason = (
        "Either the record does not belong to its plan or its commit, or something in a run does not follow from its"
    )
    if here.commit.endswith("+") or here.commit == "unknown":
        return f"It comes out otherwise, and the commit does not tell what source it was. {reason} seed."
    return f"The same commit came out otherwise. {reason} seed."


def _why_other_verdict(record: Record, result: RunResult, is_as_written: bool) -> str:
    now = VIOLATED if result.violation_count else "clean"
    because = f"{CHANGED}." if not is_as_written else "Its verdict is not of this run, or judged by another oracle."
    return f"Every step came again, byte for byte, but it was recorded as {record.verdict} and is {now}. {because}"
