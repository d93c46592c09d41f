"""What a soak leaves behind: when it fails, when it crashes itself, when it is killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from soak_rig import QUIET, calserve, elsewhere, own_log_level, short_plan

from calserve.executor import completion
from calserve.sampling.sampler import choose_rows
from calserve.simulate.record import Made, made_here, read_record
from calserve.simulate.replaying import replay
from calserve.simulate.run import Run
from calserve.simulate.shrink import kind_of
from calserve.simulate.soak import SoakOptions, run_recorded, run_unrecorded, soak

MADE = Made("0123456789abcdef", "0.1.0", "3.11.7")
MINUTE = 60_000_000_000

KILLED = """
import os, signal, sys
from pathlib import Path
from dataclasses import replace
from calserve.simulate import soak
from calserve.simulate.plan import SECOND, RunPlan, draw_plan
from calserve.simulate.record import Made, write_record

def write_and_die(record, path):
    write_record(record, path)
    if record.hashes:
        os.kill(os.getpid(), signal.SIGKILL)

soak.write_record = write_and_die
era = draw_plan(3, 60 * SECOND).eras[0]
plan = RunPlan(3, (era, replace(era, number=1)))
soak.run_recorded(plan, Made("", "", ""), Path(sys.argv[1]), 500, lambda _: None)
"""


def choose_wrongly(samplers: Any, logits: Any, counts: Any) -> Any:
    """A planted bug: whoever's sixth token it is gets the one after the right one."""
    choices = choose_rows(samplers, logits, counts)
    return [
        replace(choice, token=(choice.token + 1) % logits.shape[1]) if count == 5 and choice.error is None else choice
        for choice, count in zip(choices, counts, strict=True)
    ]


class Broken(BaseException):
    """Of the soak itself: what the code under test raises is a finding."""


def interrupt(_: int) -> None:
    raise KeyboardInterrupt


def crash(_: int) -> None:
    raise Broken


@pytest.mark.slow
def test_soak_interrupted_leaves_a_record_that_says_stopped_and_no_violation(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with pytest.raises(KeyboardInterrupt):
        run_recorded(short_plan(3), MADE, path, 500, interrupt)
    record = read_record(path)
    assert (record.verdict, record.violations) == ("stopped", [])
    assert record.plan == short_plan(3)


@pytest.mark.slow
def test_soak_that_crashes_leaves_a_record_that_says_so_and_where(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with pytest.raises(Broken):
        run_recorded(short_plan(3), MADE, path, 500, crash)
    record = read_record(path)
    assert record.verdict == "crashed"
    assert "in crash" in record.violations[-1]


@pytest.mark.slow
def test_replay_of_a_run_that_was_cut_off_compares_the_eras_it_had_come_to(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    whole = run_recorded(short_plan(3, eras=2), MADE, path, 500, lambda _: None)
    record = read_record(path)
    record.verdict, record.hashes, record.marks = "stopped", whole.hashes[:1], whole.marks[:1]
    done = replay(record, QUIET)
    assert done.is_same
    assert done.explanation == "Its 1 whole eras came again, byte for byte; it was stopped before its end."
    record.hashes = ["0" * 64]
    assert not replay(record, QUIET).is_same


@pytest.mark.slow
def test_replay_of_a_record_whose_verdict_was_changed_says_so_and_is_not_the_same(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    run_recorded(short_plan(3), made_here(), path, 500, lambda _: None)
    changed = json.loads(path.read_text())
    changed |= {"verdict": "violated", "violations": ["I4: made up"]}
    path.write_text(json.dumps(changed))
    told = calserve("soak", "--replay", path, "--json")
    assert told.exit_code == 3
    answer = json.loads(told.stdout)
    assert (answer["is_same"], answer["is_as_written"], answer["differs_in_era"]) == (False, False, None)
    assert answer["explanation"] == (
        "Every step came again, byte for byte, but it was recorded as violated and is clean. "
        "The record was changed after it was written."
    )
    changed |= {"verdict": "clean", "violations": [], "hashes": ["0" * 64]}
    path.write_text(json.dumps(changed))
    told = calserve("soak", "--replay", path, "--json")
    assert told.exit_code == 3
    assert json.loads(told.stdout)["explanation"] == (
        "It comes out otherwise. The record was changed after it was written: its hashes are not those of its plan, "
        "or not of its commit."
    )


@pytest.mark.slow
def test_marks_of_a_run_add_up_to_what_it_came_to(tmp_path: Path) -> None:
    result = run_recorded(short_plan(3, eras=2), MADE, tmp_path / "record.json", 500, lambda _: None)
    first, second = result.marks
    assert first.virtual_ns + second.virtual_ns == result.virtual_ns
    assert (first.requests + second.requests, first.jobs + second.jobs) == (
        result.counts["requests"],
        result.counts["jobs"],
    )
    assert min(first.requests, second.requests) > 100
    assert second.virtual_ns >= short_plan(3, eras=2).eras[1].safety_ns + short_plan(3, eras=2).eras[1].liveness_ns


@pytest.mark.slow
def test_soak_whose_disk_fills_up_tells_the_verdict_and_the_file_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "record.json", Path.write_text

    def full(self: Path, text: str, encoding: str | None = None) -> int:
        if '"hashes": []' in text:
            return real(self, text, encoding)
        real(self, text[:10], encoding)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    told = calserve("soak", "--minutes", "1", "--seed", "3", "--record", path)
    assert told.exit_code == 1
    assert "verdict: clean" in told.stdout
    assert told.stderr.splitlines()[-1] == f"calserve: {path} could not be written: No space left on device."
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]
    assert read_record(path).verdict == "running"


@pytest.mark.slow
def test_soak_that_breaks_after_an_era_leaves_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Run) -> None:
        raise RuntimeError("the soak's own fault")

    monkeypatch.setattr(Run, "_collect", broken)
    with pytest.raises(RuntimeError):
        run_recorded(short_plan(3), MADE, tmp_path / "record.json", 500, lambda _: None)
    record = read_record(tmp_path / "record.json")
    assert record.verdict == "crashed"
    assert len(record.hashes) == 1
    assert "the soak's own fault" in record.violations[-1]


@pytest.mark.slow
def test_soak_that_was_to_leave_no_record_leaves_one_when_it_crashes_and_none_when_it_is_stopped(
    tmp_path: Path,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_unrecorded(short_plan(3), MADE, tmp_path, 500, interrupt)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Broken):
        run_unrecorded(short_plan(3), MADE, tmp_path, 500, crash)
    assert read_record(tmp_path / "seed-3.json").verdict == "crashed"


@pytest.mark.slow
def test_soak_killed_between_two_eras_leaves_what_it_had_reached(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    there = elsewhere(KILLED, str(path))
    assert there.returncode == -9, there.stderr
    record = read_record(path)
    assert record.verdict == "running"
    assert len(record.hashes) == 1
    assert len(record.plan.eras) == 2


@pytest.mark.slow
def test_exception_of_the_code_under_test_is_a_violation_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(completion, "choose_rows", broken)
    result = Run(short_plan(3)).run()
    assert result.violations[0].startswith("crash: ")
    assert kind_of(result) == "ZeroDivisionError: planted"


@pytest.mark.slow
def test_seed_that_fails_leaves_its_record_and_a_smaller_one_that_fails_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "choose_rows", choose_wrongly)
    report = soak(SoakOptions(seed=3, duration_ns=MINUTE, records=tmp_path), QUIET)
    assert report.verdict == "violated"
    assert [path.name for path in report.records] == ["seed-3.json", "seed-3-small.json"]
    whole, small = map(read_record, report.records)
    assert whole.plan == short_plan(3)
    assert whole.verdict == small.verdict == "violated"
    assert len(small.plan.eras[0].faults.points) < len(whole.plan.eras[0].faults.points)
    assert small.plan.duration_ns < whole.plan.duration_ns
    assert small.last_lines
    told = calserve("soak", "--replay", report.records[1], "--json")
    answer = json.loads(told.stdout)
    assert answer["is_same"]
    assert answer["violations_now"] == answer["violations_then"] == small.violations
    assert small.violations[0].split(":")[0] == whole.violations[0].split(":")[0]


@pytest.mark.slow
def test_seed_that_fails_among_others_is_named_and_the_command_ends_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "choose_rows", choose_wrongly)
    told = calserve(
        "soak", "--minutes", "1", "--seed", "3", "--seeds", "2", "--no-shrink", "--records", tmp_path, "--json"
    )
    assert told.exit_code == 3
    answer = json.loads(told.stdout)
    assert [each["seed"] for each in answer["failed"]] == [3, 4]
    assert answer["files"] == [str(tmp_path / f"seed-{seed}.json") for seed in (3, 4)]


@pytest.mark.slow
def test_clean_seed_leaves_only_the_record_that_was_asked_for(tmp_path: Path) -> None:
    with own_log_level():
        options = SoakOptions(3, MINUTE, records=tmp_path / "failed", record=tmp_path / "record.json")
        report = soak(options, QUIET)
    assert report.verdict == "clean"
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
    record = read_record(tmp_path / "record.json")
    assert record.verdict == "clean"
    assert record.made == made_here()
    assert record.hashes == [report.digests[3]]
    assert record.counts["requests"] == sum(record.ends.values())
