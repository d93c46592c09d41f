"""How fast gate A hashes a package, against `sha256sum` over the same files, one pair after the other.

Owns: the pairs and their table. Must not know: what a hash is compared with. Both sides read files the first, uncounted
pair has brought into memory, so that what is compared is hashing and not a disk.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from calserve.bench.sides import BenchError
from calserve.package.checksums import hash_files, list_files
from calserve.package.manifest import CHECKSUMS, SIGNATURE
from calserve.progress import Progress

# Gate A at most a quarter slower than the tool everybody has.
RATIO_MIN = 0.8


@dataclass(slots=True)
class HashSamples:
    """Seconds of each run; runs at the same place stood next to each other."""

    total_bytes: int
    files: int
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def ratio(self) -> float:
        """Our speed over theirs: the median of the pairs."""
        return statistics.median(b / a for a, b in zip(self.ours, self.theirs, strict=True))

    def as_json(self) -> dict[str, Any]:
        return {
            "bytes": self.total_bytes,
            "files": self.files,
            "seconds": self.ours,
            "sha256sum_seconds": self.theirs,
            "ratio": self.ratio(),
        }


def measure_hashing(root: Path, pairs: int, progress: Progress) -> HashSamples:
    """`pairs` interleaved pairs over every listed file of the package at `root`. Raises BenchError, PackageError."""
    tool = shutil.which("sha256sum")
    if tool is None:
        raise BenchError("There is no sha256sum here to compare with.")
    names = [name for name in list_files(root) if name not in (CHECKSUMS, SIGNATURE)]
    samples = HashSamples(sum((root / name).stat().st_size for name in names), len(names))
    with progress.step(f"Hashing {root.name} in turn", pairs + 1, "pairs") as step:
        for pair in range(pairs + 1):
            sides = [lambda: _ours(root, names), lambda: _theirs(tool, root, names)]
            order = (0, 1) if pair % 2 else (1, 0)
            took = {side: _timed(sides[side]) for side in order}
            if took[0][1] != took[1][1]:
                raise BenchError(f"sha256sum and calserve do not agree on the files of {root}.")
            if pair:
                samples.ours.append(took[0][0])
                samples.theirs.append(took[1][0])
            step.advance(1)
    return samples


def _timed(side: Callable[[], dict[str, str]]) -> tuple[float, dict[str, str]]:
    begun = time.perf_counter()
    found = side()
    return time.perf_counter() - begun, found


def _ours(root: Path, names: Sequence[str]) -> dict[str, str]:
    return hash_files(root, names)


def _theirs(tool: str, root: Path, names: Sequence[str]) -> dict[str, str]:
    command = [tool, "--", *names]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if told.returncode:
        raise BenchError(f"sha256sum ended with {told.returncode}: {told.stderr.strip()[:200]}")
    return {name: digest for digest, _, name in (line.partition("  ") for line in told.stdout.splitlines())}


def print_hashing(samples: HashSamples, console: Console) -> None:
    table = Table(title="hashing a package against sha256sum, MB/s (medians of pairs)")
    for name in ("files", "MB", "pairs", "sha256sum", "calserve", "ratio", "bar", "reached"):
        table.add_column(name, justify="right")
    size = samples.total_bytes / 1e6
    speeds = [size / statistics.median(side) for side in (samples.theirs, samples.ours)]
    table.add_row(
        str(samples.files),
        f"{size:.0f}",
        str(len(samples.ours)),
        *(f"{speed:.0f}" for speed in speeds),
        f"{samples.ratio():.2f}",
        f"{RATIO_MIN:.2f}",
        "yes" if samples.ratio() >= RATIO_MIN else "no",
    )
    console.print(table)
