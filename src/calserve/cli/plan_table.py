"""A plan as a person reads it, and as a machine does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from calserve.package.plan import Measured, ModelPlan


def chips_words(plan: ModelPlan) -> str:
    """`chip 0`, `chips 0, 1`."""
    chips = [str(chip.memory.chip) for chip in plan.chips]
    return f"chip{'s' if len(chips) > 1 else ''} {', '.join(chips)}"


def print_plan(plan: ModelPlan, console: Console) -> None:
    """The budget of each chip, what decides, and how much more there could be."""
    from calserve.package.plan import gib

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    console.print(_table(plan))
    for chip in plan.chips:
        line(f"chip {chip.memory.chip}: {chip.verdict}, {chip.reason}")
    if len(plan.chips) > 1:
        line(f"all chips: {gib(plan.required_bytes)} required")
    contexts = ", ".join(f"{lanes} lanes {tokens or 'none'}" for lanes, tokens in plan.context_by_lanes.items())
    line(f"largest context: {contexts}")
    line(f"most lanes at {plan.shape.context} tokens: {plan.max_lanes or 'none'}")
    if plan.measured is not None:
        for name, by_chip in _readings(plan.measured).items():
            words = ", ".join(f"chip {chip} {_size(size)}" for chip, size in by_chip.items())
            line(f"measured {name}: {words}")


def _table(plan: ModelPlan) -> Table:
    from calserve.package.plan import LINE_PERCENT, gib

    shape, measured = plan.shape, plan.measured
    title = f"{plan.geometry.name} on {chips_words(plan)}: {shape.context} tokens, {shape.lanes} lanes: {plan.verdict}"
    table = Table(title=title, title_justify="left")
    table.add_column("use")
    for chip in plan.chips:
        table.add_column(f"chip {chip.memory.chip}", justify="right")
    if measured is not None:
        table.add_column("all chips, measured", justify="right")
    table.add_column("source")

    def row(name: str, cells: list[str], seen: str, source: str) -> None:
        table.add_row(name, *cells, *([seen] if measured is not None else []), source)

    for at, use in enumerate(plan.chips[0].uses):
        seen = gib(measured.uses[use.name]) if measured is not None and use.name in measured.uses else ""
        row(use.name, [_size(chip.uses[at].byte_count) for chip in plan.chips], seen, use.source)
    table.add_section()
    peak = "" if measured is None else _size(measured.peak_bytes)
    against = "the static estimate" if measured is None else "the static estimate; measured, the highest rise of all"
    row("required", [gib(chip.required_bytes) for chip in plan.chips], peak, against)
    row("guard", [gib(chip.guard_bytes) for chip in plan.chips], "", "max(1 GiB, 15 %): seed 004, section 8.2")
    row("left", [gib(chip.left_bytes) for chip in plan.chips], "", "beyond both")
    lines = [" to ".join(f"{each / 2**30:.1f}" for each in chip.line_bytes) + " GiB" for chip in plan.chips]
    row("line", lines, "", f"{LINE_PERCENT[0]} to {LINE_PERCENT[1]} %: seed 004, section 8.2")
    row("memory", [gib(chip.memory.dram_bytes) for chip in plan.chips], "", plan.chips[0].memory.source)
    return table


def _size(byte_count: int | None) -> str:
    from calserve.package.plan import gib

    return "?" if byte_count is None else gib(byte_count)


def _readings(measured: Measured) -> dict[str, Mapping[int, int | None]]:
    return {
        "rise at the load": measured.delta_bytes,
        "further rise at the longest prefill": measured.prefill_bytes,
        "further rise at a full decode": measured.decode_bytes,
        "left after the release": measured.settled_bytes,
    }


def plan_tree(plan: ModelPlan) -> dict[str, Any]:
    """The whole plan in bytes."""
    from dataclasses import asdict

    return {
        "schema": "calserve-plan/v1",
        "model": plan.geometry.name,
        "verdict": plan.verdict,
        "chips": [
            {
                "chip": chip.memory.chip,
                "verdict": chip.verdict,
                "reason": chip.reason,
                "dram_bytes": chip.memory.dram_bytes,
                "dram_source": chip.memory.source,
                "uses": {use.name: {"bytes": use.byte_count, "source": use.source} for use in chip.uses},
                "required_bytes": chip.required_bytes,
                "guard_bytes": chip.guard_bytes,
                "left_bytes": chip.left_bytes,
                "line_bytes": list(chip.line_bytes),
            }
            for chip in plan.chips
        ],
        "shape": asdict(plan.shape),
        "required_bytes": plan.required_bytes,
        "largest_context_by_lanes": plan.context_by_lanes,
        "most_lanes": plan.max_lanes,
        "measured": None if plan.measured is None else asdict(plan.measured),
    }
