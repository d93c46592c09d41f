"""What a job may use beyond the plainest one, and a generation without it.

Owns: the names of the features a board may turn out not to support (class programming: codes 27 and 29), in the order
in which they are suspected, and how each is switched off. Must not know: when.
"""

from __future__ import annotations

from dataclasses import replace

from calserve.core.flight import Job
from calserve.core.job import Bank, Task
from calserve.core.roster import Serving


def features_of(job: Job) -> tuple[str, ...]:
    """The most particular first: one is switched off at a time, so a plain job is at most so many refusals away."""
    return tuple(
        name
        for name, is_used in (
            ("mixed_jobs", job.spec.task is Task.MIXED),
            ("pinned_bank", job.spec.bank is not Bank.AUTO),
            ("second_job", job.had_company),
        )
        if is_used
    )


def without_feature(serving: Serving, feature: str) -> Serving:
    """The same generation; limits that requests were admitted under do not change (I7)."""
    if feature == "mixed_jobs":
        return replace(serving, shape=replace(serving.shape, mixed=None))
    if feature == "pinned_bank":
        serving.flight.pins_banks = False
    return serving
