"""`make sim`, `make soak` and `make fuzz` do what their help says; what they start works with a small budget."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from soak_rig import QUIET, SOURCE

from calserve.simulate.plan import MINUTE
from calserve.simulate.soak import SoakOptions, soak

ROOT = SOURCE.parent


def shown(target: str, *words: str) -> str:
    """What `make TARGET` would run."""
    told = subprocess.run(["make", "-n", "-C", ROOT, target, *words], capture_output=True, text=True, check=True)
    return told.stdout


def test_make_help_names_every_target() -> None:
    targets = re.search(r"^\.PHONY: help (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    told = subprocess.run(["make", "-s", "-C", ROOT, "help"], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^make (\w+)", told, re.MULTILINE)) == set(targets[1].split())


def test_make_sim_runs_the_seeds_of_the_suite() -> None:
    assert "calserve soak --minutes 4 --seed 1 --seeds 200 --jobs 2 --min-requests 100" in shown("sim")


def test_make_soak_runs_a_day_of_the_seed_it_is_given_and_keeps_record_and_report() -> None:
    told = shown("soak", "ARGS=--seed 9")
    assert "calserve soak --hours 24 --record build/soak/record.json --records build/soak --seed 9" in told
    assert "> build/soak/report.txt" in told


def test_make_fuzz_runs_the_properties_with_many_examples() -> None:
    told = shown("fuzz")
    assert "CALSERVE_FUZZ_EXAMPLES=4000" in told
    assert "--hypothesis-profile fuzz" in told
    named = re.findall(r"tests/\S+\.py", told)
    assert named
    assert all((ROOT / name).is_file() for name in named)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_sim_with_a_small_budget_is_clean(tmp_path: Path, jobs: int) -> None:
    options = SoakOptions(seed=1, duration_ns=4 * MINUTE, seeds=4, jobs=jobs, min_requests=100, records=tmp_path)
    report = soak(options, QUIET)
    assert (report.failed, report.weak) == ([], [])
    assert list(report.digests) == [1, 2, 3, 4]


@pytest.mark.slow
def test_soak_of_two_eras_is_clean(tmp_path: Path) -> None:
    """As `make soak`, but for two hours of two eras instead of a day."""
    options = SoakOptions(seed=5, duration_ns=120 * MINUTE, records=tmp_path, record=tmp_path / "record.json")
    report = soak(options, QUIET)
    assert report.failed == []
    assert report.tally.counts["requests"] >= 2 * 200_000 / 24


@pytest.mark.slow
def test_fuzz_with_a_small_budget_finds_nothing() -> None:
    """The entry point of `make fuzz`; the usual number of examples is the suite's own run of the same tests."""
    told = subprocess.run(
        [
            sys.executable, "-m", "pytest", "--hypothesis-profile", "fuzz", "--hypothesis-show-statistics",
            "tests/props/test_kv_machine.py", "tests/api/test_api_fuzz.py",
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "CALSERVE_FUZZ_EXAMPLES": "200"},
    )  # fmt: skip
    assert told.returncode == 0, told.stdout
    # 150 examples are usual for the ledger's machine, and 200 of the profile are twice the usual
    assert "Stopped because settings.max_examples=300" in told.stdout
    assert told.stdout.count("Stopped because settings.max_examples=200") == 4
