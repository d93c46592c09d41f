"""`calserve plan`: models and a board's chips into a table of what fits, how much more would, and why not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional, cast

import typer
from rich.console import Console

from calserve.cli.app import LANES_MAX, TOKENS_MAX, app
from calserve.cli.outputs import check_file
from calserve.cli.plan_table import chips_words, plan_tree, print_plan
from calserve.cli.ranges import ranged
from calserve.cli.refusals import REFUSED, Refusal, say, told_in_one_sentence

if TYPE_CHECKING:
    from calserve.package.geometry import Geometry
    from calserve.package.plan import ChipMemory, Measured, ModelPlan
    from calserve.runtime.contract import BoardPackage

EXIT_OVER_LINE = 3
DRAM_GIB_MAX = 65_536
CHIPS_MAX = 32
WEIGHTS = ("int8", "int4", "fp16")


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """What the flags said; 0 and None: not said. dram_gib: of one chip."""

    board: str
    profile: str | None
    dram_gib: float | None
    chips: int
    context: int
    lanes: int
    weights: str
    measure: bool
    record: Path | None
    measured: Path | None


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to plan. chips: those it is on, counted on the board; None: as many as the flags say, from the first.

    package: where it is one.
    """

    geometry: Geometry
    chips: tuple[int, ...] | None
    package: BoardPackage | None = None


@app.command()
def plan(  # noqa: PLR0913, PLR0917  (a command's flags are its parameters)
    models: Annotated[
        list[str], typer.Argument(help="A geometry's name or file, or a package; two of them: one for each chip.")
    ],
    board: Annotated[str, typer.Option(help="sim or openvino; a package's own by default.")] = "",
    board_profile: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Of a simulated board, by name or file: it states the memory of a chip."),
    ] = None,
    dram: Annotated[
        Optional[float],  # noqa: UP045
        ranged(0, DRAM_GIB_MAX, "GiB of memory of one chip, as its vendor states it.", is_above=True),
    ] = None,
    chips: Annotated[int, ranged(0, CHIPS_MAX, "Chips of one model; 0: as it is compiled, or one.")] = 0,
    context: Annotated[int, ranged(0, TOKENS_MAX, "Tokens of one sequence; 0: as compiled, or 4096.")] = 0,
    lanes: Annotated[int, ranged(0, LANES_MAX, "Sequences at once; 0: as compiled, or one.")] = 0,
    weights: Annotated[str, typer.Option(help="Of a model that is not compiled yet: int8, int4 or fp16.")] = "int8",
    measure: Annotated[bool, typer.Option("--measure", help="Load the package and show what it really takes.")] = False,
    record: Annotated[Optional[Path], typer.Option(help="With --measure: keep what was measured here.")] = None,  # noqa: UP045
    measured: Annotated[Optional[Path], typer.Option(help="Show what an earlier --record kept.")] = None,  # noqa: UP045
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Whether models have room on a board's chips. Exit code 1 when one has none, 3 when one is over the line."""
    with told_in_one_sentence():
        check_file(record, "--record", *models)
        flags = PlanFlags(board, board_profile, dram, chips, context, lanes, weights, measure, record, measured)
        plans = run_plan(models, flags)
        if as_json:
            typer.echo(json.dumps([plan_tree(each) for each in plans], indent=1))
        else:
            for each in plans:
                print_plan(each, Console())
        raise typer.Exit(_exit_code(plans))


def run_plan(models: Sequence[str], flags: PlanFlags) -> list[ModelPlan]:
    """A plan of each model. Raises Refusal, PackageError, ProfileError."""
    from calserve.package.budget import Shape, WeightFormat
    from calserve.package.plan import plan_model

    if not 1 <= len(models) <= 2:
        raise Refusal(f"calserve plan takes one model, or two for two chips, not {len(models)}.")
    if flags.weights not in WEIGHTS:
        raise Refusal(f"--weights is one of {', '.join(WEIGHTS)}, not {flags.weights[:40]!r}.")
    subjects = _placed([subject for name in models for subject in _subjects(name)], flags.chips)
    memory = _chip_memory(subjects, flags)
    loads = _measures(subjects, flags)
    shape = Shape(1, flags.context, flags.lanes, cast(WeightFormat, flags.weights))
    plans = []
    for subject, load in zip(subjects, loads, strict=True):
        assert subject.chips is not None, "it was placed"
        if max(subject.chips) >= len(memory):
            raise Refusal(
                f"{subject.geometry.name} is to be on chips {_listed(subject.chips)}; the board has {len(memory)}."
            )
        plans.append(plan_model(subject.geometry, shape, tuple(memory[chip] for chip in subject.chips), load))
    return plans


# --- which models, on which chips ---------------------------------------------------------------------------------


def _subjects(name: str) -> list[Subject]:
    """The models of a package directory, or the one of a geometry."""
    from calserve.package.address import chips_of
    from calserve.package.geometry import load_geometry, package_geometry
    from calserve.package.reader import models_of, open_tree

    if not Path(name).is_dir():
        geometry = load_geometry(name)
        return [Subject(geometry, None)]
    tree = open_tree(Path(name))
    return [
        Subject(package_geometry(tree, model), chips_of(model.chip_mask) if model.pinned else None, package)
        for model, package in zip(tree.manifest.models, models_of(tree), strict=True)
    ]


def _placed(subjects: list[Subject], chips: int) -> list[Subject]:
    """Each on chips of its own: a single model from the first on, two models on one each."""
    if len(subjects) == 1 and subjects[0].chips is None:
        compiled = subjects[0].geometry.compiled
        count = chips or (compiled.chips if compiled else 1)
        return [Subject(subjects[0].geometry, tuple(range(count)), subjects[0].package)]
    placed: list[Subject] = []
    for at, subject in enumerate(subjects):
        compiled = subject.geometry.compiled
        if len(subjects) > 1 and compiled is not None and compiled.chips > 1:
            raise Refusal(
                f"{subject.geometry.name} is compiled for {compiled.chips} chips, so no other model has a chip "
                "beside it."
            )
        placed.append(Subject(subject.geometry, subject.chips or (at,), subject.package))
    if len({chip for each in placed for chip in each.chips or ()}) != sum(len(each.chips or ()) for each in placed):
        raise Refusal("these models would share a chip; a chip holds one model.")
    return placed


def _listed(chips: tuple[int, ...]) -> str:
    return ", ".join(map(str, chips))


# --- the board ----------------------------------------------------------------------------------------------------


def _board_name(subjects: Sequence[Subject], flags: PlanFlags) -> str:
    from calserve.cli.boards import BOARDS

    own = {subject.package.board for subject in subjects if subject.package is not None}
    if flags.board and flags.board not in BOARDS:
        raise Refusal(f"There is no board {flags.board[:40]!r} to plan for; there are {' and '.join(BOARDS)}.")
    return flags.board or (own.pop() if len(own) == 1 else "sim")


def _chip_memory(subjects: Sequence[Subject], flags: PlanFlags) -> tuple[ChipMemory, ...]:
    """The memory of every chip, as the profile or the flag states it. What a board reports is never asked."""
    from calserve.cli.boards import DEFAULT_SIM_PROFILE, package_profile
    from calserve.package.plan import GIB, ChipMemory
    from calserve.runtime.sim.profile import load_profile

    board = _board_name(subjects, flags)
    if board != "sim":
        if flags.profile is not None:
            raise Refusal("--board-profile is for the simulated board; use it with --board sim.")
        if flags.dram_gib is None:
            raise Refusal(
                f"--dram must state the memory of a chip of board {board}: what a board reports as its total is no "
                "capacity of a chip."
            )
        count, dram, source = CHIPS_MAX, 0, ""
    else:
        package = subjects[0].package
        profile = (
            package_profile(package, flags.profile)
            if package is not None
            else load_profile(flags.profile or DEFAULT_SIM_PROFILE)
        )
        count, dram = profile.chips, profile.dram_bytes
        source = f"board profile {profile.name}: {profile.sources['dram_bytes']}"
    if flags.dram_gib is not None:
        dram, source = int(flags.dram_gib * GIB), "stated with --dram"
    return tuple(ChipMemory(chip, dram, source) for chip in range(count))


# --- what a load took ---------------------------------------------------------------------------------------------


def _measures(subjects: Sequence[Subject], flags: PlanFlags) -> list[Measured | None]:
    from calserve.accept.measure import read_measured, write_measured

    if flags.record is not None and not flags.measure:
        raise Refusal("--record keeps what --measure measures; use them together.")
    if flags.measure and flags.measured is not None:
        raise Refusal("--measure loads the package, --measured shows an earlier load; one of them will do.")
    if not flags.measure and flags.measured is None:
        return [None] * len(subjects)
    packages = [subject.package for subject in subjects if subject.package is not None]
    if len(packages) != len(subjects):
        raise Refusal("a geometry cannot be loaded; --measure and --measured are for packages.")
    if len(subjects) != 1:
        raise Refusal("one model is measured at a time.")
    if flags.measured is not None:
        return [read_measured(flags.measured, packages[0])]
    made = _load(packages[0], subjects[0].chips or (0,), flags)
    if flags.record is not None:
        write_measured(made, flags.record)
    return [made]


def _load(package: BoardPackage, chips: tuple[int, ...], flags: PlanFlags) -> Measured:
    from calserve.accept.driver import Stopped
    from calserve.accept.measure import measure
    from calserve.cli.boards import open_runner_board

    board, _ = open_runner_board((package,), flags.profile)
    with closing(board):
        try:
            return measure(board, package, chips)
        except Stopped as end:
            raise Refusal(f"{package.root} could not be measured: {end}.") from None


def _exit_code(plans: Sequence[ModelPlan]) -> int:
    for each in plans:
        if each.verdict == "no_room":
            reason = next(chip.reason for chip in each.chips if chip.verdict == "no_room")
            say(f"{each.geometry.name} has no room on {chips_words(each)}: it {reason}.")
    verdicts = {each.verdict for each in plans}
    if "no_room" in verdicts:
        return REFUSED
    return EXIT_OVER_LINE if "over_line" in verdicts else 0
