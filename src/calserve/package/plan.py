"""Whether a model has room on a board's chips, how much more it could have, and why not.

Owns the lines that a chip's memory is held against (seed 004, section 8.2), the search for the largest context and
batch, and the comparison with what a load really took. Must not know a board: its memory is a figure that somebody
stated, never one that a board reported as free. Life of the main object: a ModelPlan is made once and printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from calserve.package.budget import Shape, Use, budget, settled
from calserve.package.geometry import Geometry

GIB: Final = 1 << 30
# Percent of a chip's own DRAM that a static plan may take: more than the first is tight, more than the second too much.
LINE_PERCENT: Final = (75, 80)
GUARD_PERCENT: Final = 15
GUARD_LEAST: Final = GIB
LANES_ASKED: Final = (1, 4, 8, 16)
MAX_LANES: Final = 1024  # beyond any compiled batch

# fits: within both lines and the guard is free. tight: between the lines. over_line: the chip holds it, and too little
# is left over. no_room: the chip does not hold it.
Verdict: TypeAlias = Literal["fits", "tight", "over_line", "no_room"]
_ORDER: Final[tuple[Verdict, ...]] = ("fits", "tight", "over_line", "no_room")


@dataclass(frozen=True, slots=True)
class ChipMemory:
    """One chip's own DRAM, and where that figure is stated."""

    chip: int
    dram_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load took. uses: bytes over all chips by use, as the session says; workspace at its peak.

    The others are by chip, None where the board shows none. delta_bytes: how much more memory was in use after a load.
    prefill_bytes, decode_bytes: how much more once again after the longest prefill, and after a decode of every lane.
    settled_bytes: how much more than before it all, after the release.
    """

    package_hash: str
    board: str
    uses: Mapping[str, int]
    delta_bytes: Mapping[int, int | None]
    prefill_bytes: Mapping[int, int | None]
    decode_bytes: Mapping[int, int | None]
    settled_bytes: Mapping[int, int | None]

    @property
    def peak_bytes(self) -> int | None:
        """The highest rise seen, over all chips."""
        peak = 0
        for chip, loaded in self.delta_bytes.items():
            prefill, decode = self.prefill_bytes[chip], self.decode_bytes[chip]
            if loaded is None or prefill is None or decode is None:
                return None
            peak += loaded + max(0, prefill, decode)
        return peak


@dataclass(frozen=True, slots=True)
class ChipPlan:
    """One chip's budget. required_bytes: of all uses; unknown ones count nothing. left_bytes: beyond use and guard."""

    memory: ChipMemory
    uses: tuple[Use, ...]
    guard_bytes: int
    line_bytes: tuple[int, int]
    verdict: Verdict
    reason: str

    @property
    def required_bytes(self) -> int:
        return sum(use.byte_count or 0 for use in self.uses)

    @property
    def left_bytes(self) -> int:
        return self.memory.dram_bytes - self.guard_bytes - self.required_bytes


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model on its chips. context_by_lanes: the longest context of each number of lanes within the upper line, 0
    for none. max_lanes: most lanes at the planned context, 0 for none."""

    geometry: Geometry
    shape: Shape
    chips: tuple[ChipPlan, ...]
    context_by_lanes: Mapping[int, int]
    max_lanes: int
    measured: Measured | None = None

    @property
    def verdict(self) -> Verdict:
        return max((chip.verdict for chip in self.chips), key=_ORDER.index)

    @property
    def required_bytes(self) -> int:
        return sum(chip.required_bytes for chip in self.chips)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Uses that nothing but a load can tell."""
        return tuple(use.name for use in self.chips[0].uses if use.byte_count is None)


def guard_bytes(dram_bytes: int) -> int:
    """Left free whatever happens: max(1 GiB, 15 % of the chip's DRAM) (seed 004, section 8.2)."""
    return max(GUARD_LEAST, dram_bytes * GUARD_PERCENT // 100)


def line_bytes(dram_bytes: int) -> tuple[int, int]:
    """75 % and 80 % of the chip's DRAM (seed 004, section 8.2)."""
    low, high = (dram_bytes * percent // 100 for percent in LINE_PERCENT)
    return low, high


def plan_model(
    geometry: Geometry, shape: Shape, chips: tuple[ChipMemory, ...], measured: Measured | None = None
) -> ModelPlan:
    """The plan of one model on exactly these chips, none of which it shares.

    Raises PackageError where the model cannot run in this shape on any board.
    """
    assert chips, "a model is on at least one chip"
    shape = settled(geometry, replace(shape, chips=len(chips)))
    uses = budget(geometry, shape)
    if measured is not None:
        uses = _with_measured(uses, measured)
    plans = tuple(_chip_plan(memory, each) for memory, each in zip(chips, uses, strict=True))
    asked = sorted({*LANES_ASKED, shape.lanes})
    contexts = {lanes: _longest_context(geometry, replace(shape, lanes=lanes), chips) for lanes in asked}
    return ModelPlan(geometry, shape, plans, contexts, _most_lanes(geometry, shape, chips), measured)


def _with_measured(uses: tuple[tuple[Use, ...], ...], measured: Measured) -> tuple[tuple[Use, ...], ...]:
    """What only a load can tell, from the load."""
    known = "measured at a load, shared evenly by its chips"
    return tuple(
        tuple(
            Use(use.name, -(-measured.uses[use.name] // len(uses)), known)
            if use.byte_count is None and use.name in measured.uses
            else use
            for use in each
        )
        for each in uses
    )


def _chip_plan(memory: ChipMemory, uses: tuple[Use, ...]) -> ChipPlan:
    guard, lines = guard_bytes(memory.dram_bytes), line_bytes(memory.dram_bytes)
    required = sum(use.byte_count or 0 for use in uses)
    verdict, reason = _judge(memory, uses, required)
    return ChipPlan(memory, uses, guard, lines, verdict, reason)


def _judge(memory: ChipMemory, uses: tuple[Use, ...], required: int) -> tuple[Verdict, str]:
    dram = memory.dram_bytes
    low, high = line_bytes(dram)
    guard = guard_bytes(dram)
    whole = f"{gib(required)} of {gib(dram)}"
    if required > dram:
        largest = max(uses, key=lambda use: use.byte_count or 0)
        return "no_room", f"needs {whole}; {largest.name} alone {gib(largest.byte_count or 0)}"
    if required > high:
        return "over_line", f"needs {whole}, above the line of {LINE_PERCENT[1]} % ({gib(high)})"
    if required + guard > dram:
        return "over_line", f"needs {whole}, which leaves {gib(dram - required)} of a guard of {gib(guard)}"
    if required > low:
        return "tight", f"needs {whole}, between {LINE_PERCENT[0]} and {LINE_PERCENT[1]} %"
    unknown = [use.name for use in uses if use.byte_count is None]
    if unknown:
        return "tight", f"needs {whole} and a {unknown[0]} that only a load can tell"
    return "fits", f"needs {whole}"


def _is_within(geometry: Geometry, shape: Shape, chips: tuple[ChipMemory, ...]) -> bool:
    """Whether every chip stays within the upper line, with its guard."""
    uses = budget(geometry, shape)
    return all(_chip_plan(memory, each).verdict in ("fits", "tight") for memory, each in zip(chips, uses, strict=True))


def _longest_context(geometry: Geometry, shape: Shape, chips: tuple[ChipMemory, ...]) -> int:
    """More tokens never need less memory, so the border is found by halves."""
    return _largest(geometry.context, lambda context: _is_within(geometry, replace(shape, context=context), chips))


def _most_lanes(geometry: Geometry, shape: Shape, chips: tuple[ChipMemory, ...]) -> int:
    return _largest(MAX_LANES, lambda lanes: _is_within(geometry, replace(shape, lanes=lanes), chips))


def _largest(most: int, is_within: Callable[[int], bool]) -> int:
    """The largest number from 1 to `most` that holds, 0 for none; every smaller one holds too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_within(middle) else (low, middle - 1)
    return low


def gib(byte_count: int) -> str:
    """`4_026_531_840` -> `3.750 GiB`, the seed's own form."""
    return f"{byte_count / GIB:.3f} GiB"
