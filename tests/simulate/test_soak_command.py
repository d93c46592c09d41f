"""`calserve soak` from the outside: what it prints first, what it refuses, what its JSON has."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest
from soak_rig import calserve

from calserve.simulate.plan import SECOND
from calserve.simulate.record import made_here
from calserve.simulate.result import RunResult
from calserve.simulate.run import Run
from calserve.simulate.sometimes import PATHS

BIGGEST = str(2**63 - 1)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seed", "-1"], f"--seed is 0 to {BIGGEST}, not -1."),
        (["--seed", str(2**63)], f"--seed is 0 to {BIGGEST}, not {2**63}."),
        (["--seed", str(10**40)], f"--seed is 0 to {BIGGEST}, not {10**40}."),
        (["--seed", BIGGEST, "--seeds", "2"], f"--seed {BIGGEST} and --seeds 2 go beyond {BIGGEST}."),
        (["--hours", "0"], "--hours is above 0 and at most 8784, not 0.0."),
        (["--hours", "-3"], "--hours is above 0 and at most 8784, not -3.0."),
        (["--hours", "nan"], "--hours is above 0 and at most 8784, not nan."),
        (["--hours", "inf"], "--hours is above 0 and at most 8784, not inf."),
        (["--minutes", "nan"], "--minutes is above 0 and at most 527040, not nan."),
        (["--hours", "1", "--minutes", "1"], "--hours and --minutes say the same thing; give one of them."),
        (
            ["--seeds", "2", "--record", "record.json"],
            "--record keeps one run; of several --seeds, those that fail leave their records in --records.",
        ),
        (["--rate", "3"], "--rate needs --wall."),
        (["--wall", "--seeds", "3"], "--seeds is for runs on virtual time, not for --wall."),
        (["--wall", "--bank", "fixed"], "--bank is for runs on virtual time, not for --wall."),
        (["--replay", "x.json", "--hours", "2"], "--hours says nothing beside --replay."),
        (["--report", "y.md", "--record", "z.json"], "--record says nothing beside --report."),
    ],
    ids=str,
)
def test_flag_that_makes_no_sense_gets_one_sentence_and_exit_code_1(flags: list[str], said: str) -> None:
    told = calserve("soak", *flags)
    assert told.exit_code == 1
    assert told.output.strip() == f"calserve: {said}"


@pytest.mark.parametrize("flag", ["--record", "--report"])
def test_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path, flag: str) -> None:
    (tmp_path / "file").write_text("")
    told = calserve("soak", flag, tmp_path / "file" / "record.json")
    assert told.exit_code == 1
    assert told.output.strip() == f"calserve: {tmp_path / 'file'} is no directory, so {flag} cannot put a file there."


@pytest.mark.parametrize("flag", ["--record", "--report", "--replay"])
def test_directory_in_the_place_of_a_file_is_refused(tmp_path: Path, flag: str) -> None:
    told = calserve("soak", flag, tmp_path)
    assert told.exit_code == 1
    assert len(told.output.strip().splitlines()[-1]) < 300
    assert str(tmp_path) in told.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such record."),
        ("", "not JSON"),
        ("null", "schema is 'None', this version replays calserve-soak-record/v1."),
        ('{"schema": "calserve-soak-record/v1", "plan": {"seed": "x"}}', "this version cannot replay it"),
    ],
)
def test_replay_of_what_is_no_record_gets_one_sentence(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "record.json"
    if text is not None:
        path.write_text(text)
    told = calserve("soak", "--replay", path)
    assert told.exit_code == 1
    assert said in told.output
    assert len(told.output.strip().splitlines()) == 1


@pytest.mark.slow
def test_soak_prints_seed_commit_and_plan_before_anything_else() -> None:
    told = calserve("soak", "--minutes", "2", "--seed", "3")
    assert told.exit_code == 0, told.output
    first, second = told.stdout.splitlines()[:2]
    assert first.startswith(f"seed 3, commit {made_here().commit}, calserve ")
    assert second.startswith("  era 0: ")
    assert "faults: " in second
    assert told.stdout.splitlines()[-1] == "verdict: clean"


@pytest.mark.parametrize("place", ["/dev/null", "/proc/self/none"])
def test_soak_whose_failing_runs_could_leave_no_record_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def crash(_: Run) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr(Run, "run", crash)
    told = calserve("soak", "--minutes", "1", "--seed", "3", "--records", place)
    assert told.exit_code == 1
    assert told.stdout == ""


def ran_as(result: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "run", lambda self: replace(result, virtual_ns=self.plan.duration_ns + 35 * SECOND))


@pytest.mark.parametrize(
    ("flags", "said", "planned"),
    [
        # a minute and five seconds healed, and twenty with faults before them, are the shortest there is
        (("--minutes", "1e-9"), "asked for: the shortest of this seed is 1.417 min", "1.417 min"),
        (("--minutes", "1"), "  longer than the 1 min asked for: the shortest of this seed is 1.417 min", "1.417 min"),
        (("--minutes", "2"), "", "2 min"),
        (("--hours", "3"), "", "3 h"),
    ],
)
def test_soak_says_how_long_its_run_is_and_when_that_is_longer_than_was_asked(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, str], said: str, planned: str
) -> None:
    ran_as(RunResult(hashes=["ab" * 32]), monkeypatch)
    told = calserve("soak", "--seed", "3", *flags)
    first, second, *rest = told.stdout.splitlines()
    assert f"Python 3.11.7: {planned} of virtual time in ".replace("3.11.7", platform.python_version()) in first
    assert said in second
    assert second.startswith("  longer than " if said else "  era 0: ")
    (summary,) = (line for line in rest if line.startswith("1 run, "))
    assert summary.startswith(f"1 run, {planned} of virtual time (")
    ends_ns = {"1.417 min": "2 min", "2 min": "2.583 min", "3 h": "3.009722 h"}[planned]
    assert f"({ends_ns} with the orderly end of each era)" in summary


@pytest.mark.slow
def test_soak_json_is_one_object_with_everything(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    told = calserve("soak", "--minutes", "1", "--seed", "3", "--record", record, "--json")
    answer = json.loads(told.stdout)
    assert answer["verdict"] == "clean"
    assert answer["runs"] == 1
    assert answer["made_by"]["commit"] == made_here().commit
    assert answer["planned_hours"] == 85 / 3600
    assert 85 < 3600 * answer["virtual_hours"] <= 120
    assert answer["counts"]["requests"] == sum(answer["ends"].values())
    assert set(answer["sometimes"]) == set(PATHS)
    assert list(answer["records_sha256"]) == ["3"]
    assert len(answer["records_sha256"]["3"]) == 64
    assert (answer["failed"], answer["weak"], answer["files"]) == ([], [], [str(record)])
    assert 0 < answer["share_of_jobs_with_four_rows"] < 1
    assert answer["mean_output_tokens"] > 1


@pytest.mark.slow
def test_soak_with_fewer_requests_than_asked_for_is_weak() -> None:
    told = calserve("soak", "--minutes", "1", "--seed", "3", "--min-requests", "100000", "--json")
    assert told.exit_code == 3
    answer = json.loads(told.stdout)
    assert answer["verdict"] == "weak"
    assert answer["weak"] == [f"seed 3: {answer['counts']['requests']} requests"]
