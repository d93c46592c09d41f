"""What a soak tells: the plan before it starts, the verdict after, and the table of recoveries.

Owns: words and tables, as text, Markdown and JSON. Must not know: how anything was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from calserve.simulate.plan import HOUR, MINUTE, SECOND, Era, RunPlan
from calserve.simulate.record import Made
from calserve.simulate.recovery import Recovery
from calserve.simulate.soak import SoakReport
from calserve.simulate.sometimes import PATHS

_MS = 1_000_000


def plan_text(plan: RunPlan, made: Made, asked_ns: int = 0) -> str:
    """The seed, the commit, and what was drawn: printed before anything runs. asked_ns: what was asked for, 0 where
    nothing was: a run that is longer says so."""
    lines = [
        f"seed {plan.seed}, commit {made.commit}, calserve {made.version}, Python {made.python}: "
        f"{_time(plan.duration_ns)} of virtual time in {len(plan.eras)} era{'s' * (len(plan.eras) > 1)}"
    ]
    if 0 < asked_ns < plan.duration_ns:
        lines.append(
            f"  longer than the {_time(asked_ns)} asked for: the shortest of this seed is {_time(plan.duration_ns)}"
        )
    lines += [_era_text(era) for era in plan.eras]
    return "\n".join(lines)


def _time(ns: int) -> str:
    """Enough digits that minutes beside a day show."""
    return f"{ns / HOUR:.7g} h" if ns >= HOUR else f"{ns / MINUTE:.4g} min"


def _era_text(era: Era) -> str:
    board, server = era.board, era.server
    without = f" without {', '.join(board.cut)}" if board.cut else ""
    bank = "fixed bank" if server.fixed_engine else "automatic bank"
    lanes = ",".join(map(str, board.profiles))
    device = "same device" if era.keeps_device else "new device"
    points = era.faults.points or tuple(fault.point for fault in era.faults.listed)
    return (
        f"  era {era.number}: {_time(era.safety_ns)} + {_time(era.liveness_ns)} healed, {device}, "
        f"{board.base}{without}, "
        f"{board.sessions} session{'s' * (board.sessions > 1)} of B{lanes}, context {board.context}, "
        f"{server.max_in_flight} in flight ({bank}); faults: {', '.join(points) or 'none'}"
    )


def print_report(report: SoakReport, console: Console, *, all_paths: bool) -> None:
    """The verdict, load, ends, faults and rare paths, for a person."""
    tally = report.tally
    counts = tally.counts
    console.print(
        f"{tally.runs} run{'s' * (tally.runs != 1)}, {_time(report.planned_ns)} of virtual time "
        f"({_time(tally.virtual_ns)} with the orderly end of each era) in {report.seconds:.1f} s: "
        f"{counts.get('requests', 0)} requests, {counts.get('jobs', 0)} jobs, {counts.get('output_tokens', 0)} tokens; "
        f"mean output {tally.mean_output:.1f}, {100 * tally.wide_share:.0f} % of jobs with four rows or more",
        highlight=False,
    )
    _print_counts(console, "how requests ended", tally.ends)
    _print_counts(console, "faults that fired", tally.fired)
    _print_counts(console, "rare paths", {n: c for n, c in tally.sometimes.items() if c or all_paths}, PATHS)
    for seed, digest in list(report.digests.items())[:3]:
        console.print(f"seed {seed}: record {digest}", highlight=False, soft_wrap=True)
    for seed, violation in report.failed[:20]:
        console.print(f"seed {seed} failed: {violation}", style="red", highlight=False, markup=False, soft_wrap=True)
    for sentence in report.weak:
        console.print(f"too weak: {sentence}", style="yellow", highlight=False, markup=False)
    for path in report.records:
        console.print(f"record: {path}", highlight=False, soft_wrap=True)
    console.print(f"verdict: {report.verdict}", style="green" if report.is_clean else "red")


def _print_counts(console: Console, title: str, counts: dict[str, int], words: dict[str, str] | None = None) -> None:
    if not counts:
        return
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    table.add_column("times", justify="right")
    if words:
        table.add_column("which is")
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        table.add_row(name, str(count), *((words.get(name, ""),) if words else ()))
    console.print(table)


def report_json(report: SoakReport) -> dict[str, Any]:
    tally = report.tally
    return {
        "verdict": report.verdict,
        "made_by": None if report.made is None else asdict(report.made),
        "runs": tally.runs,
        "planned_hours": report.planned_ns / HOUR,
        "virtual_hours": tally.virtual_ns / HOUR,
        "seconds": report.seconds,
        "mean_output_tokens": tally.mean_output,
        "share_of_jobs_with_four_rows": tally.wide_share,
        "share_of_prompts_of_half_the_context": tally.long_prompt_share,
        "counts": tally.counts,
        "ends": tally.ends,
        "faults_fired": tally.fired,
        "sometimes": tally.sometimes,
        "records_sha256": {str(seed): digest for seed, digest in report.digests.items()},
        "failed": [{"seed": seed, "violation": text} for seed, text in report.failed],
        "weak": report.weak,
        "files": [str(path) for path in report.records],
        "unwritten": report.unwritten,
    }


_HEADS = (
    "fault", "fired", "fault to Ready, ms", "resets", "process restarts", "requests lost", "requests served",
    "jobs of a sibling meanwhile",
)  # fmt: skip


def recovery_markdown(rows: Sequence[Recovery], made: Made, seed: int) -> str:
    """The table of recoveries, a section for each board."""
    parts = [
        "# Recovery, by fault kind",
        "",
        f"One fault of each kind on a simulated board at work, virtual time; commit {made.commit}, seed {seed}. `0` to "
        "Ready: no session stopped serving. Times contain the profile's assumed reset and configure times.",
    ]
    for board in dict.fromkeys(row.board for row in rows):
        parts += ["", f"## {board}", "", "| " + " | ".join(_HEADS) + " |", "|" + " --- |" * len(_HEADS)]
        parts += ["| " + " | ".join(_cells(row)) + " |" for row in rows if row.board == board]
    return "\n".join(parts) + "\n"


def _cells(row: Recovery) -> tuple[str, ...]:
    ready = "never" if row.to_ready_ns is None else f"{row.to_ready_ns / _MS:.0f}"
    return (
        row.fault,
        str(row.fired),
        ready,
        ", ".join(row.resets) or "none",
        str(row.restarts),
        str(row.lost),
        str(row.served),
        str(row.sibling_jobs),
    )


def recovery_json(rows: Sequence[Recovery]) -> list[dict[str, Any]]:
    return [
        {
            "board": row.board,
            "fault": row.fault,
            "fired": row.fired,
            "to_ready_s": None if row.to_ready_ns is None else row.to_ready_ns / SECOND,
            "resets": list(row.resets),
            "process_restarts": row.restarts,
            "lost": row.lost,
            "served": row.served,
            "sibling_jobs": row.sibling_jobs,
            "violations": row.violations,
        }
        for row in rows
    ]
