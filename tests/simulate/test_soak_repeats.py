"""The same seed gives the same run: in one process, in another, and whatever the order of its sets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from soak_rig import QUIET, calserve, elsewhere, short_plan

from calserve.simulate.plan import RunPlan
from calserve.simulate.record import Made, made_here, read_record, write_record
from calserve.simulate.replaying import replay
from calserve.simulate.run import Run
from calserve.simulate.soak import run_recorded

DIGEST = """
import logging, sys
logging.disable(logging.CRITICAL)
from calserve.simulate.plan import SECOND, draw_plan
from calserve.simulate.run import Run
print(Run(draw_plan(int(sys.argv[1]), 60 * SECOND)).run().digest)
"""


def digest(plan: RunPlan) -> str:
    result = Run(plan).run()
    assert result.violations == []
    return result.digest


@pytest.fixture(scope="module")
def record_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean run of two eras, and its record."""
    path = tmp_path_factory.mktemp("record") / "record.json"
    result = run_recorded(short_plan(3, eras=2), made_here(), path, 500, lambda _: None)
    assert result.violations == []
    return path


def doctored(path: Path, target: Path, **made: str) -> Path:
    """A copy whose maker is another."""
    record = read_record(path)
    record.made = replace(record.made, **made)
    write_record(record, target)
    return target


@pytest.mark.slow
def test_seed_run_twice_gives_the_same_hash_and_another_seed_another() -> None:
    assert digest(short_plan(3)) == digest(short_plan(3)) != digest(short_plan(4))


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_seed_run_in_another_process_under_another_hash_seed_gives_the_same_hash(hash_seed: str) -> None:
    there = elsewhere(DIGEST, "3", PYTHONHASHSEED=hash_seed)
    assert there.returncode == 0, there.stderr
    assert there.stdout.strip() == digest(short_plan(3))


@pytest.mark.slow
def test_full_scans_of_the_cores_invariants_change_nothing() -> None:
    """A record made with scans replays without them."""
    assert Run(short_plan(3), check_every=20).run().digest == digest(short_plan(3))


@pytest.mark.slow
def test_record_replayed_is_the_same_step_by_step(record_path: Path) -> None:
    record = read_record(record_path)
    assert record.verdict == "clean"
    assert len(record.hashes) == 2
    done = replay(record, QUIET)
    assert (done.is_same, done.differs_in_era, done.violations) == (True, None, [])


@pytest.mark.slow
def test_record_replayed_by_the_command_says_so_and_ends_with_0(record_path: Path) -> None:
    told = calserve("soak", "--replay", record_path)
    assert told.exit_code == 0
    assert told.output.startswith("seed 3, commit ")
    assert "Every step came again, byte for byte." in told.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({}, "Either the record does not belong to its plan or its commit, or something in a run does not follow"),
        ({"commit": "f" * 40}, f"recorded at commit {'f' * 40} and this is "),
        ({"python": "3.99.1"}, "recorded under Python 3.99.1, this is "),
    ],
    ids=str,
)
def test_record_with_another_hash_is_noticed_and_says_why_that_may_be(
    record_path: Path, tmp_path: Path, made: dict[str, str], said: str
) -> None:
    path = doctored(record_path, tmp_path / "doctored.json", **made)
    record = read_record(path)
    record.hashes[1] = "0" * 64
    write_record(record, path)
    told = calserve("soak", "--replay", path, "--json")
    assert told.exit_code == 3
    answer = json.loads(told.stdout)
    assert (answer["is_same"], answer["differs_in_era"]) == (False, 1)
    assert said in answer["explanation"]


@pytest.mark.slow
def test_record_of_another_commit_that_comes_out_the_same_is_the_same(record_path: Path, tmp_path: Path) -> None:
    path = doctored(record_path, tmp_path / "older.json", commit="f" * 40, python="3.99.1")
    assert replay(read_record(path), QUIET).is_same


@pytest.mark.slow
def test_record_that_ended_early_is_not_the_same(record_path: Path) -> None:
    record = read_record(record_path)
    del record.hashes[1]
    done = replay(record, QUIET)
    assert (done.is_same, done.differs_in_era) == (False, None)


def test_made_here_names_this_version_and_python() -> None:
    import platform

    from calserve import __version__

    made = made_here()
    assert made == Made(made.commit, __version__, platform.python_version())
    assert made.commit
