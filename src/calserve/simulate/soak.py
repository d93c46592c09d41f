"""The soak: one long run or many short ones, each with its record, and one verdict.

Owns: what is run for what was asked, records, shrinking, the verdict. Must not know: how a run works inside, how a
person is told (the command line prints). Life: `soak` for fresh runs, `replay` for a record's.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from calserve.progress import Progress
from calserve.simulate.one_board import BoardChoice, is_proof_still, plan_on_board, proof_of
from calserve.simulate.plan import HOUR, RunPlan, draw_plan
from calserve.simulate.record import Made, Record, made_here, read_record, write_record
from calserve.simulate.result import RunResult
from calserve.simulate.run import Run
from calserve.simulate.shrink import kind_of, shrink
from calserve.simulate.verdict import LONG_RUN_NS, WIDE_ROWS, Load, Tally, weaknesses

# Between two full scans of the core's own invariants, in turns of the engine: the oracle judges all the time.
CHECK_EVERY = 500
# Many short runs together must be this long to be held against what a long one must have shown.
POOLED_MIN = 24


Advanced = Callable[[int], None]


def _silent(_: int) -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """seeds: this many runs, from `seed` on, each `duration_ns` long. records: where failing runs leave theirs.

    record: where a single run leaves its own, clean or not. jobs: processes for several seeds. check_every: turns
    between scans of the core's own assertions beside the oracle, 0 for none. board: every era runs on it; None: boards
    are drawn too.
    """

    seed: int
    duration_ns: int
    seeds: int = 1
    records: Path = Path("soak-records")
    record: Path | None = None
    jobs: int = 1
    check_every: int = CHECK_EVERY
    is_shrunk: bool = True
    min_requests: int = 0
    board: BoardChoice | None = None

    def plan(self, number: int = 0) -> RunPlan:
        """The run of the seed `number` after the first."""
        drawn = draw_plan(self.seed + number, self.duration_ns)
        return drawn if self.board is None else plan_on_board(drawn, self.board)


@dataclass(slots=True)
class SoakReport:
    """What came of it. failed: seed and first violation; records: files written."""

    made: Made | None = None
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    digests: dict[int, str] = field(default_factory=dict)
    failed: list[tuple[int, str]] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.failed and not self.weak

    @property
    def verdict(self) -> str:
        return "violated" if self.failed else "weak" if self.weak else "clean"


def be_quiet() -> None:
    """What a server would log of thousands of planted faults helps nobody; the record has all of it."""
    logging.getLogger("calserve").setLevel(logging.CRITICAL + 1)


def soak(options: SoakOptions, progress: Progress) -> SoakReport:
    """Run, record, judge. A run that fails is shrunk, and both its record and the smaller one's are written."""
    report = SoakReport()
    began = time.monotonic()
    made = report.made = made_here()
    for plan, result in _results(options, made, progress):
        report.tally.add(result)
        report.digests[plan.seed] = result.digest
        if result.violation_count:
            report.failed.append((plan.seed, result.violations[0]))
            report.records += _record_failure(options, made, plan, result, progress)
        elif result.counts.get("requests", 0) < options.min_requests:
            report.weak.append(f"seed {plan.seed}: {result.counts.get('requests', 0)} requests")
    if not report.failed and (options.duration_ns >= LONG_RUN_NS or options.seeds >= POOLED_MIN):
        report.weak += weaknesses(report.tally, _load_of(options.plan()))
    report.seconds = time.monotonic() - began
    if options.record is not None and options.seeds == 1:
        report.records.append(options.record)
        _finish_record(options.record, report)
    return report


def _load_of(plan: RunPlan) -> Load:
    """What its boards can be loaded with at all."""
    return Load(
        can_be_wide=any(max(era.board.profiles) >= WIDE_ROWS for era in plan.eras),
        is_paired=all(era.board.is_served and era.server.max_in_flight > 1 for era in plan.eras),
    )


def run_recorded(plan: RunPlan, made: Made, path: Path, check_every: int, advanced: Advanced) -> RunResult:
    """One run whose record stands from the first moment; a crash of the soak itself leaves it, with its reason."""
    record = Record(plan, made, hours=plan.duration_ns / HOUR, proof=proof_of(plan))
    write_record(record, path)

    def keep(result: RunResult) -> None:
        """After each era, so that even a process that is killed leaves what it had come to."""
        _fill(record, result)
        write_record(record, path)

    run = Run(plan, check_every, advanced, era_ended=keep)
    try:
        result = run.run()
    except BaseException:
        _leave_crashed(record, run.result, path)
        raise
    _fill(record, result)
    record.verdict = "violated" if result.violation_count else "clean"
    if not is_proof_still(plan, record.proof):
        record.proof = {}
    write_record(record, path)
    return result


def run_unrecorded(
    plan: RunPlan, made: Made, records: Path, check_every: int, advanced: Advanced = _silent
) -> RunResult:
    """One run that leaves a record in `records` only when the soak itself crashes."""
    run = Run(plan, check_every, advanced)
    try:
        return run.run()
    except BaseException:
        record = Record(plan, made, hours=plan.duration_ns / HOUR)
        _leave_crashed(record, run.result, records / f"seed-{plan.seed}.json")
        raise


def _leave_crashed(record: Record, result: RunResult, path: Path) -> None:
    _fill(record, result)
    record.verdict = "crashed"
    record.violations.append(traceback.format_exc())
    write_record(record, path)


def _results(options: SoakOptions, made: Made, progress: Progress) -> Iterator[tuple[RunPlan, RunResult]]:
    plans = [options.plan(i) for i in range(options.seeds)]
    if len(plans) == 1:
        minutes = plans[0].duration_ns // 60_000_000_000
        with progress.step("Virtual minutes", minutes, "min") as step:
            passed = _Minutes(step.advance)
            if options.record is not None:
                yield plans[0], run_recorded(plans[0], made, options.record, options.check_every, passed)
            else:
                yield plans[0], run_unrecorded(plans[0], made, options.records, options.check_every, passed)
        return
    with progress.step("Seeds", len(plans), "seeds") as step:
        for plan, result in _many(plans, options, made):
            step.advance(1)
            yield plan, result


class _Minutes:
    """Turns virtual nanoseconds into whole minutes for a progress bar."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._left_ns = 0

    def __call__(self, passed_ns: int) -> None:
        minutes, self._left_ns = divmod(self._left_ns + passed_ns, 60_000_000_000)
        if minutes:
            self._advance(minutes)


def _many(plans: list[RunPlan], options: SoakOptions, made: Made) -> Iterator[tuple[RunPlan, RunResult]]:
    if options.jobs == 1:
        for plan in plans:
            yield plan, run_unrecorded(plan, made, options.records, options.check_every)
        return
    run = partial(_run_plan, made=made, records=options.records, check_every=options.check_every)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        yield from zip(plans, pool.map(run, plans, chunksize=4), strict=True)


def _run_plan(plan: RunPlan, made: Made, records: Path, check_every: int) -> RunResult:
    """In a process of its own."""
    be_quiet()
    return run_unrecorded(plan, made, records, check_every)


def _record_failure(
    options: SoakOptions, made: Made, plan: RunPlan, result: RunResult, progress: Progress
) -> list[Path]:
    path = options.records / f"seed-{plan.seed}.json"
    record = Record(plan, made, hours=plan.duration_ns / HOUR)
    _fill(record, result)
    record.verdict = "violated"
    write_record(record, path)
    if not options.is_shrunk:
        return [path]
    with progress.step(f"Shrinking seed {plan.seed}"):
        # only eras up to the one that failed can matter
        reached = replace(plan, eras=plan.eras[: result.eras_begun])
        small = shrink(reached, kind_of(result), run=lambda smaller: Run(smaller, options.check_every).run())
    if small == plan:
        return [path]
    smaller = Record(small, made, hours=small.duration_ns / HOUR)
    _fill(smaller, Run(small, options.check_every).run())
    smaller.verdict = "violated"
    beside = options.records / f"seed-{plan.seed}-small.json"
    write_record(smaller, beside)
    return [path, beside]


def _fill(record: Record, result: RunResult) -> None:
    record.hashes = list(result.hashes)
    record.violations = list(result.violations)
    record.last_lines = list(result.last_lines) if result.violations else []
    record.counts = dict(result.counts)
    record.ends = dict(result.ends)
    record.sometimes = dict(result.sometimes)
    record.fired = dict(result.fired)


def _finish_record(path: Path, report: SoakReport) -> None:
    """A run may be clean and still too weak to prove anything; then its record says so."""
    record = read_record(path)
    if record.verdict == "clean" and report.weak:
        record.verdict = "weak"
        record.violations = list(report.weak)
        write_record(record, path)


@dataclass(frozen=True, slots=True)
class Replayed:
    """is_same: every hash equal. differs_in_era: the first whose hash is another; None when none is, or when the
    recorded run ended before it had one. violations: of the run made now."""

    is_same: bool
    differs_in_era: int | None
    violations: list[str]
    explanation: str


def replay(record: Record, progress: Progress, check_every: int = CHECK_EVERY) -> Replayed:
    """Run a record's plan again. Where it comes out otherwise, say why that may be."""
    minutes = record.plan.duration_ns // 60_000_000_000
    with progress.step("Virtual minutes", minutes, "min") as step:
        result = Run(record.plan, check_every, _Minutes(step.advance)).run()
    pairs = list(zip(record.hashes, result.hashes, strict=False))
    differs = next((number for number, (then, now) in enumerate(pairs) if then != now), None)
    is_same = differs is None and len(record.hashes) == len(result.hashes)
    here = made_here()
    if is_same:
        told = "Every step came again, byte for byte."
    elif here.commit != record.made.commit:
        told = (
            f"It was recorded at commit {record.made.commit} and this is {here.commit}: the code decides otherwise now."
        )
    elif here.python != record.made.python:
        told = f"It was recorded under Python {record.made.python}, this is {here.python}."
    else:
        told = "The same commit came out otherwise: something in a run does not follow from its seed."
    return Replayed(is_same, differs, result.violations, told)
