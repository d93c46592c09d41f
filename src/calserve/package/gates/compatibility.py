"""Gate F: the package against the runtime that is installed, and against a board where one is at hand.

Owns version ranges, devices and required capabilities. Must not know boards: whoever asks for a run on one hands in a
`BoardTrial`. Life of the main object: a trial is opened after every other gate has passed, tries each model in turn,
and is closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Literal, Protocol

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from calserve.package.address import chips_of
from calserve.package.gates.finding import Findings, Place
from calserve.package.gates.work import Work
from calserve.package.manifest import MANIFEST, Compatibility, ModelEntry
from calserve.package.tree import PackageTree, board_package
from calserve.runtime.contract import CAPABILITIES, BoardFacts, BoardPackage, Evidence
from calserve.runtime.targets import TARGETS, runtime_version


class BoardTrial(Protocol):
    """An open board that tries packages."""

    @property
    def facts(self) -> BoardFacts: ...

    def attempt(self, package: BoardPackage, chips: tuple[int, ...]) -> tuple[Literal["configure", "warm"], str] | None:
        """Configure `package` on `chips`, run goldens and warm-up, release it. None, or the stage and what went wrong
        as a clause without a full stop."""


class NoSuchProfile(Exception):
    """There is no board as the package names it. The message is a sentence without its full stop."""


# For the package's models, and how many chips they need of a board.
OpenTrial = Callable[[tuple[BoardPackage, ...], int], AbstractContextManager[BoardTrial]]


def check_compatibility(work: Work, findings: Findings) -> None:
    """What needs no board."""
    tree = work.checked_tree()
    needs = tree.compatibility
    at = Place(file=tree.manifest.files["compatibility"])
    if needs.target != tree.manifest.target:
        findings.add(
            "F01", f"The manifest is for target {tree.manifest.target}, {at.file} for {needs.target}.", at,
            tree.manifest.target, needs.target,
        )  # fmt: skip
        return
    _check_runtime(needs, at, findings)
    for name, times in Counter(needs.capabilities).items():
        if name not in CAPABILITIES:
            findings.add("F05", f"{at.file} requires {name}, and there is no such capability.", at, given=name)
        elif times > 1:
            findings.add("F05", f"{at.file} requires {name} {times} times.", at, 1, times)
    if not needs.devices or len(set(needs.devices)) != len(needs.devices):
        findings.add("F06", f"{at.file} names devices {list(needs.devices)}: one at least, and each once.", at)


def _check_runtime(needs: Compatibility, at: Place, findings: Findings) -> None:
    library = TARGETS[needs.target].library
    try:
        wanted = Requirement(needs.runtime)
    except (InvalidRequirement, ValueError):
        findings.add("F02", f"{at.file}: the runtime {needs.runtime!r} is no name with a range of versions.", at)
        return
    if wanted.name != library or wanted.url or wanted.marker or wanted.extras or not wanted.specifier:
        findings.add(
            "F02", f"{at.file}: the runtime {needs.runtime!r} is not a range of versions of {library}.", at, library,
            wanted.name,
        )  # fmt: skip
        return
    found = runtime_version(needs.target)
    if not found:
        findings.add("F04", f"{library} is not installed here, so {needs.runtime!r} could not be held against it.", at)
        return
    try:
        is_inside = wanted.specifier.contains(Version(found), prereleases=True)
    except InvalidVersion:
        is_inside = False
    if not is_inside:
        findings.add(
            "F03", f"The package needs {library}{wanted.specifier}, and {found} is installed.", at,
            str(wanted.specifier), found,
        )  # fmt: skip


def check_on_board(work: Work, open_trial: OpenTrial, findings: Findings) -> None:
    """What needs a board: opened here, after everything else held."""
    tree = work.checked_tree()
    models = tree.manifest.models
    packages = tuple(board_package(tree, model) for model in models)
    with ExitStack() as held:
        try:
            trial = held.enter_context(open_trial(packages, _chips_needed(tree)))
        except NoSuchProfile as error:
            findings.add("F13", f"{error}.", Place(file=MANIFEST))
            return
        _check_facts(tree, trial.facts, findings)
        if findings.has_failed:
            return
        for model, package in zip(models, packages, strict=True):
            wrong = trial.attempt(package, _chips(model))
            if wrong is not None:
                stage, clause = wrong
                rule = "F11" if stage == "configure" else "F12"
                findings.add(rule, f"Model {model.name}: {clause}.", Place(model=model.name))


def _chips(model: ModelEntry) -> tuple[int, ...]:
    """Where a pinned model must run; else the first chips, as many as it has."""
    return chips_of(model.chip_mask) if model.pinned else tuple(range(model.chip_mask.bit_count()))


def _chips_needed(tree: PackageTree) -> int:
    return 1 + max(chip for model in tree.manifest.models for chip in _chips(model))


def _check_facts(tree: PackageTree, facts: BoardFacts, findings: Findings) -> None:
    at = Place(file=tree.manifest.files["compatibility"])
    chips = {chip.chip: chip for chip in facts.chips}
    needed = {chip for model in tree.manifest.models for chip in _chips(model)}
    if missing := sorted(needed - chips.keys()):
        findings.add(
            "F07", f"The package needs chips {sorted(needed)}, and board {facts.name} has no {missing}.", at,
            sorted(chips), sorted(needed),
        )  # fmt: skip
        return
    # A package that is not pinned goes onto the first chips, in the order of its own.
    for chip, reserve in zip(sorted(needed), sorted(tree.memory.chips, key=lambda r: r.chip), strict=False):
        total, wanted = chips[chip].memory_bytes, reserve.bytes + reserve.guard_bytes
        if 0 < total < wanted:
            findings.add(
                "F08", f"Chip {chip} of board {facts.name} has {total} bytes, and {wanted} are reserved.", at,
                total, wanted,
            )  # fmt: skip
    # A simulated board is what its profile says, so that is its device.
    device = facts.versions.get("device", facts.versions.get("profile"))
    if device is not None and device not in tree.compatibility.devices:
        devices = list(tree.compatibility.devices)
        findings.add(
            "F09", f"The board's device is {device}, and the package may run on {devices}.", at, devices, device
        )
    for name in tree.compatibility.capabilities:
        state = facts.capabilities.get(name, Evidence.C4)
        if state is not Evidence.C0:
            findings.add(
                "F10", f"The package requires {name}, which is {state.name} ({state.value}) on board {facts.name}.", at,
                "C0", state.name,
            )  # fmt: skip
