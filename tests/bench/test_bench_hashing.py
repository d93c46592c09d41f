"""The package's part of the bench: pairs by hand, and both sides over the same files."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from calserve.bench import hashing
from calserve.bench.hashing import HashSamples, measure_hashing, print_hashing
from calserve.bench.run import BenchOptions, run_bench
from calserve.bench.sides import BenchError
from calserve.progress import SilentProgress


def files(root: Path) -> Path:
    (root / "in").mkdir(parents=True)
    (root / "a").write_bytes(b"a" * 3_000_000)
    (root / "in/b c").write_bytes(b"")
    (root / "checksums.sha256").write_text("")
    return root


def test_hash_ratio_is_the_median_of_pairs_and_above_one_where_we_are_faster() -> None:
    samples = HashSamples(1, 1, ours=[1.0, 2.0, 4.0], theirs=[2.0, 3.0, 4.0])
    assert samples.ratio() == 1.5


def test_measure_hashing_runs_both_sides_over_the_files_that_are_listed(tmp_path: Path) -> None:
    samples = measure_hashing(files(tmp_path / "p"), 2, SilentProgress())
    assert (samples.files, samples.total_bytes) == (2, 3_000_000)
    assert (len(samples.ours), len(samples.theirs)) == (2, 2)


def test_measure_hashing_that_disagrees_with_the_tool_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "hash_files", lambda root, names: dict.fromkeys(names, "0" * 64))
    with pytest.raises(BenchError, match="do not agree"):
        measure_hashing(files(tmp_path / "p"), 1, SilentProgress())


def test_measure_hashing_without_the_tool_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing.shutil, "which", lambda _: None)
    with pytest.raises(BenchError, match="no sha256sum"):
        measure_hashing(files(tmp_path / "p"), 1, SilentProgress())


@pytest.mark.parametrize(("ours", "said"), [(1.25, "yes"), (1.26, "no")])
def test_print_hashing_holds_the_ratio_against_the_bar(ours: float, said: str) -> None:
    out = io.StringIO()
    print_hashing(HashSamples(10**6, 3, [ours], [1.0]), Console(file=out, width=120))
    assert out.getvalue().splitlines()[-2].split()[-2] == said


def test_bench_part_package_writes_its_samples_and_loads_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = BenchOptions(files(tmp_path / "p"), None, json_path=out, part="package", pairs=1)
    run_bench(options, SilentProgress(), Console(file=io.StringIO()))
    assert json.loads(out.read_text())["facts"]["hashing"]["files"] == 2
