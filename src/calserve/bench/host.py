"""The host's side of a step, as tables: the executor against a direct loop, and the conversion of logits.

Owns: how the questions are asked and the answers added up. Must not know: how a step is measured. Both run when
every other side of the bench has ended: they are about tens of microseconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from calserve.bench.conversion import ConversionRow, measure_conversions
from calserve.bench.report import percentile
from calserve.bench.sides import SideProcess
from calserve.bench.workload import Work, make_prompts
from calserve.progress import Progress
from calserve.text.tokenizer import Tokenizer

# Seed 003, section 13.3: how much longer a step may be, at the 50th and 99th percentile.
BARS = {0.5: 1.03, 0.99: 1.05}
STEPS = 200
BATCHES = (1, 16)


@dataclass(slots=True)
class OverheadSamples:
    """Durations of decode steps in ns, a list a turn; turns at the same place stood next to each other."""

    batch: int
    loop: list[list[int]] = field(default_factory=list)
    executor: list[list[int]] = field(default_factory=list)

    def ratio(self, share: float) -> float:
        """Executor over loop at this percentile.

        Median of the ratios pair by pair, as everywhere in this bench: a slow minute hits both sides of a pair. At
        the 99th percentile a pair has two steps above it, so the noise of one pair says little and that of many is
        in the median.
        """
        pairs = zip(self.executor, self.loop, strict=True)
        return statistics.median(percentile(a, share) / percentile(b, share) for a, b in pairs)

    def noise(self, share: float) -> float:
        """The loop over the loop of the turn before it: what this machine makes of nothing, as a factor >= 1."""
        pairs = zip(self.loop, self.loop[1:], strict=False)
        ratios = [percentile(a, share) / percentile(b, share) for a, b in pairs]
        return statistics.median(max(r, 1 / r) for r in ratios) if ratios else 1.0


@dataclass(frozen=True, slots=True)
class HostCosts:
    overhead: tuple[OverheadSamples, ...]
    conversion: tuple[ConversionRow, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "overhead": [{"batch": s.batch, "loop_ns": s.loop, "executor_ns": s.executor} for s in self.overhead],
            "conversion": [row.as_json() for row in self.conversion],
        }


def measure_host(model: Path, tokenizer: Tokenizer, pairs: int, progress: Progress) -> HostCosts:
    """`pairs` interleaved pairs of 200 decode steps at each batch, then every conversion."""
    side = SideProcess.start("overhead", model)
    try:
        overhead = tuple(_measure_overhead(side, tokenizer, batch, pairs, progress) for batch in BATCHES)
    finally:
        side.stop()
    with progress.step("Logits conversion"):
        return HostCosts(overhead, tuple(measure_conversions()))


def _measure_overhead(
    side: SideProcess, tokenizer: Tokenizer, batch: int, pairs: int, progress: Progress
) -> OverheadSamples:
    samples = OverheadSamples(batch)
    work = Work(make_prompts(tokenizer, batch, 64), STEPS)
    with progress.step(f"Executor against loop, {batch} rows", pairs + 1, "pairs") as step:
        for pair in range(pairs + 1):
            answer = side.ask(work)
            if pair:  # the first one warms both sides
                samples.loop.append(answer["loop"])
                samples.executor.append(answer["executor"])
            step.advance(1)
    return samples


def print_host(costs: HostCosts, console: Console) -> None:
    console.print(_overhead_table(costs.overhead))
    console.print(_conversion_table(costs.conversion))


def _overhead_table(rows: Sequence[OverheadSamples]) -> Table:
    table = Table(title="executor against a direct loop, ms a decode step (medians of pairs)")
    for name in ("rows", "pairs", "percentile", "loop", "executor", "ratio", "bar", "reached", "loop/loop"):
        table.add_column(name, justify="right")
    for samples in rows:
        for share, bar in BARS.items():
            sides = [
                1e-6 * statistics.median(percentile(turn, share) for turn in turns)
                for turns in (samples.loop, samples.executor)
            ]
            ratio = samples.ratio(share)
            cells = (f"{sides[0]:.3f}", f"{sides[1]:.3f}", f"{ratio:.3f}", f"{bar:.2f}")
            table.add_row(
                str(samples.batch),
                str(len(samples.loop)),
                f"P{share * 100:.0f}",
                *cells,
                "yes" if ratio <= bar else "no",
                f"{samples.noise(share):.3f}",
            )
    return table


def _conversion_table(rows: Sequence[ConversionRow]) -> Table:
    table = Table(title="logits, BF16 to float32: one pass (direct) against vector and copy (two steps)")
    for name in ("tile", "vocabulary", "rows", "CPU us", "two steps", "ratio"):
        table.add_column(name, justify="right")
    for name in ("arrays", "two steps", "MiB", "two steps", "peak MiB", "two steps"):
        table.add_column(name, justify="right")
    for row in rows:
        direct, seed = row.direct, row.two_step
        table.add_row(
            str(row.tile),
            str(row.vocab),
            str(row.rows),
            f"{direct.cpu_ns / 1e3:.0f}",
            f"{seed.cpu_ns / 1e3:.0f}",
            f"{direct.cpu_ns / max(1, seed.cpu_ns):.2f}",
            str(direct.arrays),
            str(seed.arrays),
            *(f"{size / 2**20:.2f}" for size in (direct.bytes, seed.bytes, direct.peak_bytes, seed.peak_bytes)),
        )
    return table
