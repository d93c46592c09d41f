"""`calserve soak`: a run, many runs, a replay or the table of recoveries, from flags to an exit code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from calserve.cli.outputs import check_directory, check_file
from calserve.cli.refusals import Refusal
from calserve.progress import choose_progress
from calserve.simulate.one_board import BoardChoice, doubt_about_choice, doubt_about_replay
from calserve.simulate.plan import MINUTE, SEED_MAX
from calserve.simulate.record import is_as_written, made_here, read_record
from calserve.simulate.recovery import count_cases, measure_recoveries
from calserve.simulate.replaying import replay
from calserve.simulate.report import plan_text, print_report, recovery_json, recovery_markdown, report_json
from calserve.simulate.soak import SoakOptions, be_quiet, soak
from calserve.stopping import stopping_on
from calserve.whole_file import replace_file

# A run that found something: distinct from a refusal, which ran nothing.
EXIT_FOUND = 3


@dataclass(frozen=True, slots=True)
class SoakFlags:
    """What the flags said. hours, minutes: one of them, or neither for an hour. board_profile: "" for drawn boards;
    max_in_flight 0 and bank "": not said."""

    seed: int
    hours: float | None
    minutes: float | None
    seeds: int
    jobs: int
    record: Path | None
    records: Path
    check_every: int
    shrink: bool
    as_json: bool
    min_requests: int = 0
    board_profile: str = ""
    max_in_flight: int = 0
    bank: str = ""


def run_soak(flags: SoakFlags) -> int:
    """Exit code: 0 clean, 3 a violation or a run too weak to prove anything."""
    be_quiet()
    if flags.record is not None and flags.seeds > 1:
        raise Refusal("--record keeps one run; of several --seeds, those that fail leave their records in --records.")
    check_file(flags.record, "--record")
    check_directory(flags.records, "--records")
    options = SoakOptions(
        seed=_seed(flags.seed, flags.seeds),
        duration_ns=_duration_ns(flags),
        seeds=flags.seeds,
        records=flags.records,
        record=flags.record,
        jobs=flags.jobs,
        check_every=flags.check_every,
        is_shrunk=flags.shrink,
        min_requests=flags.min_requests,
        board=_choice(flags),
    )
    console = Console(stderr=flags.as_json)
    console.print(
        plan_text(options.plan(), made_here(), asked_ns=options.duration_ns),
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    with stopping_on():
        report = soak(options, choose_progress())
    if flags.as_json:
        print(json.dumps(report_json(report), indent=1))
    else:
        print_report(report, console, all_paths=False)
    if report.unwritten:
        raise Refusal(report.unwritten[0])
    return 0 if report.is_clean else EXIT_FOUND


def run_replay(path: Path, check_every: int, as_json: bool) -> int:
    """Run a record again. Exit code: 0 the same steps and the same verdict, 3 not."""
    be_quiet()
    record = read_record(path)
    if doubt := doubt_about_replay(record.plan, record.proof):
        raise Refusal(f"{path}: {doubt}")
    is_whole = is_as_written(path, record)
    console = Console(stderr=as_json)
    console.print(plan_text(record.plan, record.made), highlight=False, markup=False, soft_wrap=True)
    with stopping_on():
        done = replay(record, choose_progress(), check_every, is_as_written=is_whole)
    if as_json:
        print(
            json.dumps(
                {
                    "is_same": done.is_same,
                    "is_as_written": is_whole,
                    "verdict_then": record.verdict,
                    "differs_in_era": done.differs_in_era,
                    "explanation": done.explanation,
                    "violations_then": record.violations,
                    "violations_now": done.violations,
                },
                indent=1,
            )
        )
    else:
        console.print(done.explanation, highlight=False, markup=False)
        for title, violations in (("then", record.violations), ("now", done.violations)):
            told = violations[0] if violations else "no violation"
            console.print(f"{title}: {told}", highlight=False, markup=False)
    return 0 if done.is_same else EXIT_FOUND


def run_recovery_report(path: Path, seed: int) -> int:
    """Measure every kind of fault and write the table: JSON for a name ending in .json, else Markdown."""
    _seed(seed, 1)
    check_file(path, "--report")
    be_quiet()
    with stopping_on(), choose_progress().step("Faults", count_cases(), "faults") as step:
        rows = measure_recoveries(seed, lambda: step.advance(1))
    made = made_here()
    text = json.dumps(recovery_json(rows), indent=1) if path.suffix == ".json" else recovery_markdown(rows, made, seed)
    replace_file(path, text)
    wrong = [row for row in rows if row.violations]
    console = Console()
    for row in wrong:
        console.print(f"{row.board}, {row.fault}: {row.violations[0]}", style="red", highlight=False, markup=False)
    console.print(f"{len(rows)} recoveries written to {path}", highlight=False, markup=False)
    return EXIT_FOUND if wrong else 0


@dataclass(frozen=True, slots=True)
class WallFlags:
    """What the flags of `soak --wall` said."""

    seed: int
    hours: float | None
    minutes: float | None
    out: Path
    board: str
    model: Path | None
    rate: float | None
    board_profile: str
    fault_plan: Path | None
    chips: int
    as_json: bool


def run_wall(flags: WallFlags) -> int:
    """Exit code: 0 every check in its bounds, 3 not."""
    from calserve.cli.soak_wall import run_soak_wall
    from calserve.simulate.wall import WallOptions

    check_directory(flags.out, "--out")
    options = WallOptions(
        out=flags.out,
        minutes=_minutes(flags.hours, flags.minutes),
        board=flags.board,
        model=flags.model,
        seed=_seed(flags.seed, 1),
        rate=flags.rate,
        board_profile=flags.board_profile or None,
        fault_plan=flags.fault_plan,
        chips=flags.chips or None,
    )
    return run_soak_wall(options, flags.as_json)


def _minutes(hours: float | None, minutes: float | None) -> float:
    if hours is not None and minutes is not None:
        raise Refusal("--hours and --minutes say the same thing; give one of them.")
    return 60 * hours if hours is not None else 60.0 if minutes is None else minutes


def _choice(flags: SoakFlags) -> BoardChoice | None:
    """The board that every era runs on. One job at a time unless two are asked for, as in a server without proof."""
    if not flags.board_profile:
        for flag, is_said in (("--max-in-flight", flags.max_in_flight), ("--bank", flags.bank)):
            if is_said:
                raise Refusal(f"{flag} is for a run on one board; name it with --board-profile.")
        return None
    choice = BoardChoice(flags.board_profile, flags.max_in_flight or 1, flags.bank)
    if doubt := doubt_about_choice(choice):
        raise Refusal(doubt)
    return choice


def _seed(seed: int, seeds: int) -> int:
    """`seeds` of them from `seed` on."""
    if seed + seeds - 1 > SEED_MAX:
        raise Refusal(f"--seed {seed} and --seeds {seeds} go beyond {SEED_MAX}.")
    return seed


def _duration_ns(flags: SoakFlags) -> int:
    """What was asked for. A drawn run is as long as its shortest phases at least, and says so."""
    return max(1, round(_minutes(flags.hours, flags.minutes) * MINUTE))
