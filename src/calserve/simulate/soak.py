"""The soak: one long run or many short ones, each with its record, and one verdict.

Owns: what is run for what was asked, records, shrinking, the verdict. Must not know: how a run works inside, how a
person is told (the command line prints). Life: `soak` runs it all, once; a signal ends it as `Stopped`.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from calserve.progress import Progress
from calserve.simulate.one_board import BoardChoice, plan_on_board, proof_of
from calserve.simulate.plan import HOUR, MINUTE, RunPlan, draw_plan
from calserve.simulate.pool import run_on_processes
from calserve.simulate.record import VIOLATED, Made, Record, made_here, read_record, write_record
from calserve.simulate.result import RunResult
from calserve.simulate.run import Run
from calserve.simulate.shrink import kind_of, shrink
from calserve.simulate.verdict import LONG_RUN_NS, WIDE_ROWS, Load, Tally, weaknesses
from calserve.stopping import stop_of

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
    """What came of it. failed: seed and first violation; records: files written. planned_ns: virtual time asked of
    the seed; what passed is more, by the orderly ends of its eras. unwritten: why a record could not be written."""

    made: Made | None = None
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    planned_ns: int = 0
    digests: dict[int, str] = field(default_factory=dict)
    failed: list[tuple[int, str]] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    records: list[Path] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)

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
    """Run, record, judge. A run that fails is shrunk, and both its record and the smaller one's are written.

    Records of runs that failed are written as they fail, and made smaller when all runs are done: whatever ends the
    soak before leaves them. Raises Stopped when a signal does.
    """
    report = SoakReport()
    began = time.monotonic()
    made = report.made = made_here()
    failing: list[tuple[RunPlan, RunResult]] = []
    try:
        with closing(_results(options, made, report, progress)) as results:
            for plan, result in results:
                _note(report, plan, result)
                if result.violation_count:
                    failing.append((plan, result))
                    report.records += _record_failure(options, made, plan, result)
                elif result.counts.get("requests", 0) < options.min_requests:
                    report.weak.append(f"seed {plan.seed}: {result.counts.get('requests', 0)} requests")
        for plan, result in failing if options.is_shrunk else ():
            report.records += _record_smaller(options, made, plan, result, progress)
    except KeyboardInterrupt as interrupt:
        raise stop_of(interrupt, _how_far(options, report)) from None
    if not report.failed and (options.duration_ns >= LONG_RUN_NS or options.seeds >= POOLED_MIN):
        report.weak += weaknesses(report.tally, _load_of(options.plan()))
    report.failed.sort()
    report.weak.sort(key=lambda sentence: not sentence.startswith("seed "))
    report.digests = dict(sorted(report.digests.items()))
    report.seconds = time.monotonic() - began
    if options.record is not None and options.seeds == 1 and not report.unwritten:
        report.records.append(options.record)
        _finish_record(options.record, report)
    return report


def _note(report: SoakReport, plan: RunPlan, result: RunResult) -> None:
    report.tally.add(result)
    report.planned_ns += plan.duration_ns
    report.digests[plan.seed] = result.digest
    if result.violation_count:
        report.failed.append((plan.seed, result.violations[0]))


def _how_far(options: SoakOptions, report: SoakReport) -> str:
    """What stays of a soak that was stopped, as a clause; the record of a single run speaks for itself."""
    if options.seeds == 1:
        return f"{options.record} has how far it came" if options.record is not None else ""
    kept = f", kept in {', '.join(map(str, report.records))}" if report.records else ""
    return f"{report.tally.runs} of {options.seeds} seeds had run, {len(report.failed)} failed{kept}"


def _load_of(plan: RunPlan) -> Load:
    """What its boards can be loaded with at all."""
    return Load(
        can_be_wide=any(max(era.board.profiles) >= WIDE_ROWS for era in plan.eras),
        is_paired=all(era.board.is_served and era.server.max_in_flight > 1 for era in plan.eras),
    )


def run_recorded(
    plan: RunPlan, made: Made, path: Path, check_every: int, advanced: Advanced, unwritten: list[str] | None = None
) -> RunResult:
    """One run whose record stands from the first moment; a crash of the soak itself leaves it, with its reason.

    unwritten: gets a sentence where the end could not be written, instead of the OSError.
    """
    record = Record(plan, made, hours=plan.duration_ns / HOUR, proof=proof_of(plan))
    write_record(record, path)

    def keep(result: RunResult) -> None:
        """After each era, so that even a process that is killed leaves what it had come to."""
        _fill(record, result)
        with suppress(OSError):  # a full disk may have room again at the end, which says so where not
            write_record(record, path)

    run = Run(plan, check_every, advanced, era_ended=keep)
    try:
        result = run.run()
    except BaseException as error:
        _leave_unfinished(record, run.result, path, error)
        raise
    _fill(record, result)
    record.verdict = VIOLATED if result.violation_count else "clean"
    try:
        write_record(record, path)
    except OSError as error:
        if unwritten is None:
            raise
        unwritten.append(f"{path} could not be written: {error.strerror}.")
    return result


def run_unrecorded(
    plan: RunPlan, made: Made, records: Path, check_every: int, advanced: Advanced = _silent
) -> RunResult:
    """One run that leaves a record in `records` only when the soak itself crashes."""
    run = Run(plan, check_every, advanced)
    try:
        return run.run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        record = Record(plan, made, hours=plan.duration_ns / HOUR)
        _leave_unfinished(record, run.result, records / f"seed-{plan.seed}.json", error)
        raise


def _leave_unfinished(record: Record, result: RunResult, path: Path, error: BaseException) -> None:
    """Told to stop, which is nobody's fault, or crashed."""
    _fill(record, result)
    if isinstance(error, KeyboardInterrupt):
        record.verdict = "stopped"
    else:
        record.verdict = "crashed"
        record.violations.append(traceback.format_exc())
    write_record(record, path)


def _results(
    options: SoakOptions, made: Made, report: SoakReport, progress: Progress
) -> Generator[tuple[RunPlan, RunResult], None, None]:
    plans = [options.plan(i) for i in range(options.seeds)]
    if len(plans) == 1:
        with progress.step("Virtual minutes", plans[0].duration_ns // MINUTE, "min") as step:
            passed = Minutes(step.advance)
            if options.record is not None:
                result = run_recorded(
                    plans[0], made, options.record, options.check_every, passed, report.unwritten
                )  # fmt: skip
            else:
                result = run_unrecorded(plans[0], made, options.records, options.check_every, passed)
        yield plans[0], result
        return
    with progress.step("Seeds", len(plans), "seeds") as step, closing(_many(plans, options, made)) as runs:
        for plan, result in runs:
            step.advance(1)
            yield plan, result


class Minutes:
    """Turns virtual nanoseconds into whole minutes for a progress bar."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._left_ns = 0

    def __call__(self, passed_ns: int) -> None:
        minutes, self._left_ns = divmod(self._left_ns + passed_ns, MINUTE)
        if minutes:
            self._advance(minutes)


def _many(plans: list[RunPlan], options: SoakOptions, made: Made) -> Generator[tuple[RunPlan, RunResult], None, None]:
    run = partial(_run_plan, made=made, records=options.records, check_every=options.check_every)
    if options.jobs == 1:
        yield from ((plan, run(plan)) for plan in plans)
    else:
        yield from run_on_processes(plans, run, options.jobs)


def _run_plan(plan: RunPlan, made: Made, records: Path, check_every: int) -> RunResult:
    """Perhaps in a process of its own."""
    be_quiet()
    return run_unrecorded(plan, made, records, check_every)


def _record_failure(options: SoakOptions, made: Made, plan: RunPlan, result: RunResult) -> list[Path]:
    return [_write_violated(plan, made, result, options.records / f"seed-{plan.seed}.json")]


def _record_smaller(
    options: SoakOptions, made: Made, plan: RunPlan, result: RunResult, progress: Progress
) -> list[Path]:
    """The record of a smaller run that fails alike, where one is found."""
    with progress.step(f"Shrinking seed {plan.seed}"):
        # only eras up to the one that failed can matter
        reached = replace(plan, eras=plan.eras[: result.eras_begun])
        small = shrink(reached, kind_of(result), run=lambda smaller: Run(smaller, options.check_every).run())
    if small == plan:
        return []
    again = Run(small, options.check_every).run()
    return [_write_violated(small, made, again, options.records / f"seed-{plan.seed}-small.json")]


def _write_violated(plan: RunPlan, made: Made, result: RunResult, path: Path) -> Path:
    record = Record(plan, made, VIOLATED, plan.duration_ns / HOUR)
    _fill(record, result)
    write_record(record, path)
    return path


def _fill(record: Record, result: RunResult) -> None:
    record.hashes, record.marks = list(result.hashes), list(result.marks)
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
