"""Gate D, addresses: sections as intervals on chips.

Owns masks, overlaps and reservations. Must not know what the bytes are for beyond a section's kind. Arithmetic is on
whole numbers of any size, so no sum wraps.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from calserve.package.address import chips_of
from calserve.package.gates.finding import Findings, Place
from calserve.package.manifest import ChipReserve, ModelEntry, Section
from calserve.package.tree import PackageTree
from calserve.runtime.targets import TARGETS

# Seed 004, section 8.2: max(1 GiB, 15 % of the chip's memory); the share needs a board, the floor does not.
GUARD_BYTES_MIN = 1 << 30
_NEEDED_KINDS = ("weights", "kv", "io")


def check_sections(tree: PackageTree, name: str, findings: Findings) -> None:
    memory, at = tree.memory, Place(file=name)
    models = {model.name: model for model in tree.manifest.models}
    for twice, times in sorted(Counter(section.name for section in memory.sections).items()):
        if times > 1:
            findings.add("D10", f"The section {twice} is there {times} times.", at)
    for section in memory.sections:
        _check_section(section, models, at, findings)
    if findings.has_failed:
        return
    for model in tree.manifest.models:
        _check_presence(model, memory.sections, at, findings)
    by_chip: dict[int, list[Section]] = defaultdict(list)
    for section in memory.sections:
        for chip in chips_of(section.chip_mask):
            by_chip[chip].append(section)
    for chip, sections in sorted(by_chip.items()):
        _check_overlap(chip, sections, at, findings)
        _check_single_kv(chip, sections, at, findings)
    _check_reserves(memory.chips, by_chip, at, findings)
    # Where nothing is compiled, as on the simulated target, a plan stands for a board's memory as a vendor's does; the
    # graphs this packer compiles run in the host's, which needs no guard.
    if memory.plan == "vendor" or not TARGETS[tree.manifest.target].is_compiled:
        _check_guards(memory.chips, at, findings)


def _check_section(section: Section, models: dict[str, ModelEntry], at: Place, findings: Findings) -> None:
    model = models.get(section.model)
    if model is None:
        findings.add("D11", f"Section {section.name} is for {section.model}, which is no model of the package.", at)
        return
    here = Place(file=at.file, model=model.name)
    if section.chip_mask & ~model.chip_mask:
        findings.add(
            "D12", f"Section {section.name} lies on chips {list(chips_of(section.chip_mask))}, and model {model.name} "
            f"has {list(chips_of(model.chip_mask))}.", here, model.chip_mask, section.chip_mask,
        )  # fmt: skip
    if section.bytes == 0:
        findings.add("D16", f"Section {section.name} is empty.", here, 1, 0)


def _check_presence(model: ModelEntry, sections: tuple[Section, ...], at: Place, findings: Findings) -> None:
    for kind in _NEEDED_KINDS:
        mask = 0
        for section in sections:
            if section.model == model.name and section.kind == kind:
                mask |= section.chip_mask
        missing = model.chip_mask & ~mask
        if missing:
            findings.add(
                "D14", f"Model {model.name} has no {kind} section on chip {', '.join(map(str, chips_of(missing)))}.",
                Place(file=at.file, model=model.name), model.chip_mask, mask,
            )  # fmt: skip


def _check_overlap(chip: int, sections: list[Section], at: Place, findings: Findings) -> None:
    """Sorted by address, a section overlaps an earlier one exactly when it begins before the furthest end so far.

    Workspaces of one model may share bytes: its graphs do not run at once (seed 004, section 6.2). They are merged
    first, each model's into pieces that do not touch, so that the one sweep below is right for all.
    """
    pieces = _merged(sections)
    furthest = pieces[0]
    for piece in pieces[1:]:
        if piece[0] < furthest[1]:
            findings.add(
                "D15", f"On chip {chip} sections {furthest[2]} and {piece[2]} overlap at address {piece[0]}.",
                at, furthest[1], piece[0],
            )  # fmt: skip
        if piece[1] > furthest[1]:
            furthest = piece


def _check_single_kv(chip: int, sections: list[Section], at: Place, findings: Findings) -> None:
    """Units are counted from the beginning of the one pool."""
    for model, times in Counter(section.model for section in sections if section.kind == "kv").items():
        if times > 1:
            findings.add(
                "D26", f"Model {model} has {times} KV sections on chip {chip}.", Place(file=at.file, model=model), 1,
                times,
            )  # fmt: skip


def _merged(sections: list[Section]) -> list[tuple[int, int, str]]:
    """(begin, end, name), rising; overlapping workspaces of one model as one."""
    pieces: list[tuple[int, int, str]] = []
    open_piece: dict[str, tuple[int, int, str]] = {}
    for section in sorted(sections, key=lambda s: (s.address, s.address + s.bytes, s.name)):
        begin, end = section.address, section.address + section.bytes
        if section.kind != "workspace":
            pieces.append((begin, end, section.name))
            continue
        before = open_piece.get(section.model)
        if before is not None and begin < before[1]:
            open_piece[section.model] = (before[0], max(before[1], end), before[2])
            continue
        if before is not None:
            pieces.append(before)
        open_piece[section.model] = (begin, end, section.name)
    return sorted([*pieces, *open_piece.values()])


def _check_reserves(
    reserves: tuple[ChipReserve, ...], by_chip: dict[int, list[Section]], at: Place, findings: Findings
) -> None:
    chips = [reserve.chip for reserve in reserves]
    if sorted(chips) != sorted(by_chip):
        findings.add(
            "D19", f"{at.file} reserves on chips {chips}, and sections lie on {sorted(by_chip)}.", at,
            sorted(by_chip), chips,
        )  # fmt: skip
        return
    for reserve in reserves:
        end = max(section.address + section.bytes for section in by_chip[reserve.chip])
        if reserve.bytes < end:
            findings.add(
                "D20", f"Chip {reserve.chip} reserves {reserve.bytes} bytes, and its last section ends at {end}.",
                at, end, reserve.bytes,
            )  # fmt: skip


def _check_guards(reserves: tuple[ChipReserve, ...], at: Place, findings: Findings) -> None:
    for reserve in reserves:
        if reserve.guard_bytes < GUARD_BYTES_MIN:
            findings.add(
                "D21", f"Chip {reserve.chip} has a guard of {reserve.guard_bytes} bytes, below {GUARD_BYTES_MIN}.", at,
                GUARD_BYTES_MIN, reserve.guard_bytes,
            )  # fmt: skip
