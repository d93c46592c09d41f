"""`calserve prove concurrent-jobs`: from flags to a file and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from calserve.accept.evidence import load_evidence
from calserve.cli.app import app

SHORT = ["--tokens", "20", "--steps", "10", "--repeats", "1", "--rows", "1"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["prove", "concurrent-jobs", *arguments])
    return result.exit_code, result.output


def test_prove_on_the_simulated_board_writes_what_it_found(tmp_path: Path) -> None:
    out = tmp_path / "evidence.json"
    code, said = run("--board", "sim", "--out", str(out), *SHORT)
    assert code == 3, said
    evidence = load_evidence(out)
    assert (evidence.board, evidence.simulated, evidence.state) == ("sim", True, "C1")
    assert evidence.versions["profile"] == "assumed-lanes"
    assert "soak_24h" in said


def test_prove_on_a_board_with_one_job_at_a_time_says_the_code(tmp_path: Path) -> None:
    out = tmp_path / "evidence.json"
    code, said = run("--board", "sim", "--board-profile", "calculet-2chip", "--out", str(out), *SHORT)
    assert code == 3
    assert "code 27" in said
    assert load_evidence(out).checks == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--model takes a package directory"),
        (("--model", "nowhere"), "nowhere"),
        (("--board", "sim", "--board-profile", "nothing"), "nothing"),
        (("--board", "sim", "--soak", "nowhere.json"), "nowhere.json"),
    ],
)
def test_prove_with_wrong_flags_is_refused_in_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, output = run("--out", str(tmp_path / "evidence.json"), *arguments)
    assert code == 1
    assert said in output
    assert output.count("\n") == 1
    assert not (tmp_path / "evidence.json").exists()
