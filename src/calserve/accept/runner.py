"""The fixed runner of a package's goldens (seed 004, section 6.4): one order of steps, from open board to release.

Owns: that order, what is looked at before anything is configured, and what the trace must show. Must not know: which
board it is given, or how it was opened. Life of a run: check the package against the board; configure once; A's
goldens, B's goldens, then both at once; look at outputs and trace; drain, reset the configuration, release. The first
thing that fails ends the run, but never the last three steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calserve.accept.driver import Stopped
from calserve.accept.goldens import GoldenRun, run_alone, run_together
from calserve.accept.overlap_ratio import OverlapRatio, overlap_ratio, shared_ns
from calserve.core.commands import ResetScope
from calserve.package.address import chips_of
from calserve.package.manifest import ModelEntry
from calserve.package.reader import PackageTree
from calserve.progress import Progress
from calserve.runtime.contract import Board, BoardPackage, LoadOptions, Session, TraceSpan

SCHEMA = "calserve-run/v1"
GENERATION = 1
DRAIN_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class RunOptions:
    """clock: in ns, the time in which speed is told. concurrent: also both at once. rounds: timed rounds of that."""

    clock: Callable[[], int]
    concurrent: bool = False
    rounds: int = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """What did not hold. check: targets, configure, golden, buffers, trace, overlap, stopped, or end."""

    check: str
    detail: str


@dataclass(slots=True)
class ModelRun:
    """One model's part. alone_ns: of each round by itself."""

    model: str
    hash: str
    chips: tuple[int, ...]
    goldens: int
    graphs: tuple[str, ...]
    steps: int = 0
    alone_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class RunReport:
    """What was seen. sessions: that were bound, one a model. configurations: of the board, one a package (two models
    of a combined one are one); 0 where the package was refused before.

    joint_ns: of each round with all models at once. shared_ns: of that, compute of both at the same time, by the trace.
    """

    package: str
    board: str
    simulated: bool
    models: list[ModelRun]
    findings: list[Finding] = field(default_factory=list)
    configurations: int = 0
    sessions: int = 0
    joint_ns: list[int] = field(default_factory=list)
    shared_ns: int = 0
    overlap: OverlapRatio | None = None
    busy_ns: dict[int, int] = field(default_factory=dict)
    schema: str = SCHEMA


def run_goldens(
    board: Board, tree: PackageTree, models: Sequence[BoardPackage], options: RunOptions, progress: Progress
) -> RunReport:
    """The whole run on an open board, which stays open. `tree` and `models` are the same package."""
    facts = board.describe()
    entries = [
        ModelRun(each.model, each.hash, chips_of(each.chip_mask), len(each.goldens), tuple(g.name for g in each.graphs))
        for each in models
    ]
    report = RunReport(tree.digest, facts.name, facts.simulated, entries)
    report.findings += [Finding("targets", wrong) for wrong in check_targets(tree, len(facts.chips))]
    if report.findings:
        return report
    sessions: list[Session] = []
    try:
        sessions += _configured(board, models, report)
        jobs = itertools.count(1)
        runs = [
            GoldenRun(session, package, GENERATION, jobs) for session, package in zip(sessions, models, strict=True)
        ]
        _run_rounds(board, runs, options, report, progress)
        _look(board, runs, report)
    except Stopped as end:
        report.findings.append(Finding("stopped", str(end)))
    finally:
        report.findings += [Finding("end", wrong) for wrong in _end(board, sessions)]
    return report


# --- before anything is configured --------------------------------------------------------------------------------


def check_targets(tree: PackageTree, chips: int) -> list[str]:
    """What the package says that this runner must not hand to a board of so many chips: a sentence each.

    Exact names, and everything of a model on its own chips: nothing is matched by part or made up (seed 004, 6.4).
    """
    wrong: list[str] = []
    models = tree.manifest.models
    names = [f"{model.name}.{graph.name}" for model in models for graph in model.graphs]
    wrong += [
        f"the graph {name} is there {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1
    ]
    for model in models:
        wrong += _model_wrongs(tree, model, chips)
    for one, other in itertools.combinations(models, 2):
        if one.chip_mask & other.chip_mask:
            wrong.append(f"{one.name} and {other.name} are both on chips {chips_of(one.chip_mask & other.chip_mask)}")
    if len(models) > 1:
        wrong += [f"{model.name} of several models is not pinned to its chips" for model in models if not model.pinned]
    return wrong


def _model_wrongs(tree: PackageTree, model: ModelEntry, chips: int) -> list[str]:
    mask, wrong = model.chip_mask, []
    if mask >> chips:
        wrong.append(f"{model.name} is on chips {chips_of(mask)}, the board has {chips}")
    for graph in model.graphs:
        if graph.chip_mask != mask:
            wrong.append(
                f"graph {model.name}.{graph.name} is on chips {chips_of(graph.chip_mask)}, "
                f"its model on {chips_of(mask)}"
            )
    for section in tree.memory.sections:
        if section.model == model.name and section.chip_mask & ~mask:
            wrong.append(
                f"section {section.name} is on chips {chips_of(section.chip_mask)}, its model on {chips_of(mask)}"
            )
    for task in ("prefill", "decode"):
        if not any(task in graph.tasks for graph in model.graphs):
            wrong.append(f"{model.name} has no graph that can {task}")
    return wrong


# --- the run ------------------------------------------------------------------------------------------------------


def _configured(board: Board, models: Sequence[BoardPackage], report: RunReport) -> list[Session]:
    """A session of each model, each made once: of a combined package they share one configuration."""
    sessions: list[Session] = []
    for package in models:
        options = LoadOptions(
            chips=chips_of(package.chip_mask),
            numerics=package.numerics,
            lanes=package.max_lanes,
            kv_tokens=package.max_lanes * package.context,
        )
        code, session = board.configure(package, options, package.model, GENERATION)
        if code or session is None:
            for made in sessions:
                made.close()
            raise Stopped(f"{package.model}: configure gave code {code}: {board.health().detail}".rstrip(": "))
        sessions.append(session)
        report.sessions += 1
        report.configurations = len({made.bundle or made.hash for made in models[: report.sessions]})
    return sessions


def _run_rounds(
    board: Board, runs: Sequence[GoldenRun], options: RunOptions, report: RunReport, progress: Progress
) -> None:
    rounds = options.rounds if options.concurrent else 1
    with progress.step("Running goldens", rounds * (len(runs) + options.concurrent), "passes") as step:
        for _ in range(rounds):
            for run, entry in zip(runs, report.models, strict=True):
                entry.alone_ns.append(_timed(options.clock, lambda run=run: run_alone(run)))  # type: ignore[misc]
                step.advance(1)
            if options.concurrent:
                before = [len(run.mine) for run in runs]
                report.joint_ns.append(_timed(options.clock, lambda: run_together(runs)))
                together = [set(run.mine[at:]) for run, at in zip(runs, before, strict=True)]
                report.shared_ns += shared_ns(board.trace(0), together)
                step.advance(1)


def _timed(clock: Callable[[], int], work: Callable[[], None]) -> int:
    began = clock()
    work()
    return clock() - began


def _look(board: Board, runs: Sequence[GoldenRun], report: RunReport) -> None:
    """Outputs, buffers and trace of what ran."""
    for run, entry in zip(runs, report.models, strict=True):
        entry.steps = run.steps_done
        report.findings += [Finding("golden", wrong) for wrong in run.wrong]
    for one, other in itertools.combinations(runs, 2):
        if _share_memory(one.arrays(), other.arrays()):
            names = f"{one.package.model} and {other.package.model}"
            report.findings.append(Finding("buffers", f"host buffers of {names} share memory"))
    spans = board.trace(0)
    for run, entry in zip(runs, report.models, strict=True):
        report.findings += [Finding("trace", wrong) for wrong in _trace_wrongs(spans, run, entry.chips)]
    for span in spans:
        if span.phase == "compute" and span.core <= 0:  # one of the cores that work side by side
            report.busy_ns[span.chip] = report.busy_ns.get(span.chip, 0) + span.end_ns - span.begin_ns
    if report.joint_ns:
        serial = [sum(each) for each in zip(*(entry.alone_ns for entry in report.models), strict=True)]
        report.overlap = overlap_ratio(serial, report.joint_ns)
        if not report.overlap.is_proven or report.shared_ns <= 0:
            report.findings.append(
                Finding("overlap", f"{report.overlap.words()}, {report.shared_ns} ns of compute shared by the trace")
            )


def _share_memory(mine: Sequence[np.ndarray[Any, Any]], theirs: Sequence[np.ndarray[Any, Any]]) -> bool:
    return any(np.may_share_memory(one, other) for one in mine for other in theirs)


def _trace_wrongs(spans: Sequence[TraceSpan], run: GoldenRun, chips: tuple[int, ...]) -> list[str]:
    """Each job computed, and on its model's chips alone; a model of one chip moves nothing between chips."""
    mine = set(run.mine)
    own = [span for span in spans if span.job in mine]
    model = run.package.model
    elsewhere = sorted({span.chip for span in own} - set(chips))
    wrong = [f"{model} worked on chip {chip}, and is compiled for {chips}" for chip in elsewhere]
    unseen = mine - {span.job for span in own if span.phase == "compute"}
    if unseen:
        wrong.append(f"{len(unseen)} of {len(mine)} jobs of {model} left no compute in the trace")
    if len(chips) == 1 and any(span.phase == "d2d" for span in own):
        wrong.append(f"{model} is on one chip, and moved data between chips")
    return wrong


def _end(board: Board, sessions: Sequence[Session]) -> list[str]:
    """Drain, reset the configuration, release: all of them, whatever the first one says."""
    wrong = [f"drain of {each.name} gave code {code}" for each in sessions if (code := each.drain(DRAIN_NS))]
    counters = board.counters()
    if counters.pending or counters.left:
        wrong.append(f"after the drain {counters.pending} jobs are pending and {counters.left} left")
    if sessions and (code := board.reset(ResetScope.CONFIGURATION, None)):
        wrong.append(f"the reset of the configuration gave code {code}")
    wrong += [f"release of {each.name} gave code {code}" for each in sessions if (code := each.close())]
    return wrong
