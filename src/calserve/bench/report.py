"""Samples into the table people read and the JSON machines read. Ratios are of medians of one interleaved run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from calserve.whole_file import replace_file


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest-rank percentile; 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def histogram_percentile(text: str, name: str, share: float) -> float | None:
    """Percentile in seconds from a Prometheus histogram's cumulative buckets, linear within a bucket."""
    buckets: list[tuple[float, float]] = []
    for line in text.splitlines():
        if line.startswith(f"{name}_bucket"):
            bound = line.split('le="')[1].split('"')[0]
            buckets.append((float(bound.replace("+Inf", "inf")), float(line.rsplit(" ", 1)[1])))
    buckets.sort()
    if not buckets or not buckets[-1][1]:
        return None
    wanted, before, low = share * buckets[-1][1], 0.0, 0.0
    for upper, count in buckets:
        if count >= wanted:
            return low if upper == float("inf") else low + (upper - low) * (wanted - before) / max(1, count - before)
        before, low = count, upper
    return low


@dataclass(slots=True)
class Samples:
    """What each side gave at one number of streams. rates: tokens/s, one a repeat, in the order measured."""

    streams: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    ttft: dict[str, list[float]] = field(default_factory=dict)
    tpot: dict[str, list[float]] = field(default_factory=dict)

    def median(self, side: str) -> float:
        return statistics.median(self.rates[side]) if self.rates.get(side) else 0.0

    def ratio(self, side: str, base: str) -> float | None:
        """Median of the ratios pair by pair: what was measured next to each other is compared."""
        pairs = list(zip(self.rates.get(side, ()), self.rates.get(base, ()), strict=False))
        return statistics.median(a / b for a, b in pairs) if pairs else None


def print_table(samples: Sequence[Samples], sides: Sequence[str], console: Console) -> None:
    table = Table(title="output tokens/s (medians) and ratios (medians of pairs)")
    table.add_column("streams", justify="right")
    for side in sides:
        table.add_column(side, justify="right")
    pairs = [("greedy", "raw"), ("sampled", "raw"), ("greedy", "genai"), ("greedy", "genai-hints"), ("raw", "bare")]
    shown = [pair for pair in pairs if pair[0] in sides and pair[1] in sides]
    for side, base in shown:
        table.add_column(f"{side}/{base}", justify="right")
    for row in samples:
        rates = [f"{row.median(side):.0f}" for side in sides]
        ratios = [row.ratio(side, base) for side, base in shown]
        table.add_row(str(row.streams), *rates, *[f"{r:.3f}" if r else "-" for r in ratios])
    console.print(table)
    times = Table(title="served, milliseconds")
    for name in ("streams", "work", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"):
        times.add_column(name, justify="right")
    for row in samples:
        for work in row.ttft:
            cells = [1e3 * percentile(row.ttft[work], q) for q in (0.5, 0.99)]
            cells += [1e3 * percentile(row.tpot[work], q) for q in (0.5, 0.99)]
            times.add_row(str(row.streams), work, *[f"{c:.1f}" for c in cells])
    console.print(times)


def write_json(
    path: Path, samples: Sequence[Samples], facts: Mapping[str, Any], host: Mapping[str, Any] | None = None
) -> None:
    """host: every sample of the host's part, where it ran."""
    rows = [{"streams": s.streams, "tokens_per_s": s.rates, "ttft_s": s.ttft, "tpot_s": s.tpot} for s in samples]
    replace_file(path, json.dumps({"facts": dict(facts), "samples": rows, "host": dict(host or {})}, indent=1))
