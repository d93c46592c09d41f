"""The verdict of a whole soak: every check, and pass or fail.

Owns which checks there are. Must not measure, and must not know how a report is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from calserve.core.supervisor import EXIT_UNKNOWN_DMA
from calserve.simulate.wall.report import FAILED, PASSED, WallReport
from calserve.simulate.wall.samples import Sample, lives
from calserve.simulate.wall.verdict import (
    FAILED_STATE,
    Check,
    count_check,
    drift_checks,
    idle_check,
    kv_check,
    model_state,
)

# A soak whose model was out of service for most of it has shown little, whatever else held. Where nothing is made to
# fail, a busy machine may still miss a look now and then.
IN_SERVICE_MIN, IN_SERVICE_MIN_SOUND = 0.25, 0.95


def conclude(report: WallReport, values: dict[str, float], unsent: int, has_faults: bool) -> None:
    """Fill in the checks, the verdict and its reason. values: of `/metrics` once all was quiet."""
    is_failed = has_faults and report.state == FAILED_STATE
    report.checks = [
        Check("answers", report.wrong_count == 0, "0 wrong", f"{report.wrong_count} wrong of {report.ended}"),
        Check("one end each", report.sent == report.ended, f"{report.sent} sent", f"{report.ended} ended"),
        Check("all were sent", unsent == 0, "0 kept back", f"{unsent} kept back"),
        Check(
            "golden at the end",
            report.golden == PASSED or (report.golden == FAILED_STATE and is_failed),
            "passes, or faults made it Failed" if has_faults else "passes",
            f"{report.golden}, the model is {report.state or 'gone'}",
        ),
        _in_service(report.samples, has_faults),
        kv_check(report.samples),
        idle_check(values),
        count_check(values),
        *drift_checks(lives(report.samples)),
        _ends(report),
        Check(
            "orderly end",
            report.exit_code == 0 or (is_failed and report.exit_code == EXIT_UNKNOWN_DMA),
            "code 0",
            f"code {report.exit_code}",
        ),
    ]
    failed = [check.name for check in report.checks if check.ok is False]
    unjudged = [check.name for check in report.checks if check.ok is None]
    report.verdict = FAILED if failed else PASSED
    report.reason = f"not in bounds: {', '.join(failed)}" if failed else "every check that was judged is in its bounds"
    if unjudged:
        report.reason += f"; not judged: {', '.join(unjudged)}"


def _in_service(samples: Sequence[Sample], has_faults: bool) -> Check:
    """The share of looks at which the model served."""
    least = IN_SERVICE_MIN if has_faults else IN_SERVICE_MIN_SOUND
    share = sum(model_state(sample.values) == "ready" for sample in samples) / max(1, len(samples))
    return Check("in service", share >= least, f"at least {least:.0%}", f"{share:.0%} of {len(samples)} looks")


def _ends(report: WallReport) -> Check:
    """Every process but the last ended because a supervisor or an operator was to start another."""
    allowed = Counter({0: report.replaced, 1: report.failed_loads})
    others = Counter(code for code in report.exits[:-1] if code != EXIT_UNKNOWN_DMA) - allowed
    found = ", ".join(f"{count} with {code}" for code, count in sorted(Counter(report.exits).items()))
    return Check("ends of processes", not others, "75, or replaced", found or "none")
