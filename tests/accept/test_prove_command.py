"""`calserve prove concurrent-jobs`: from flags to a file and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calserve.accept.evidence import doubt_about, load_evidence
from calserve.cli.app import app
from calserve.cli.boards import BoardFlags, chosen_board
from calserve.package import open_package
from calserve.package.geometry import load_geometry
from calserve.package.pack.sim_target import SimOptions, pack_sim
from calserve.progress import SilentProgress
from calserve.runtime.sim import figures

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


def test_evidence_of_a_board_file_is_refused_once_a_figure_of_it_was_edited(tmp_path: Path) -> None:
    """Under the same name, with the same versions and the same package: only the digest tells."""
    file, out = tmp_path / "mine.yaml", tmp_path / "evidence.json"
    text = (Path(figures.__file__).parent / "profiles" / "assumed-pingpong.yaml").read_text("utf-8")
    file.write_text(text, "utf-8")
    run("--board", "sim", "--board-profile", str(file), "--out", str(out), *SHORT)
    evidence = load_evidence(out)

    def doubt_now() -> str:
        with chosen_board(BoardFlags(board="sim", profile=str(file))) as chosen:
            board = chosen.open()
            facts, package = board.describe(), chosen.package.hash
            board.close()
        assert (evidence.versions, evidence.package_hash) == (dict(facts.versions), package)
        return doubt_about(evidence, facts, package)

    assert "other figures" not in doubt_now()
    file.write_text(text.replace("a warm chip", "another word about it"), "utf-8")
    assert "other figures" not in doubt_now()
    file.write_text(text.replace("banks_overlap: {value: true", "banks_overlap: {value: false"), "utf-8")
    assert doubt_now().startswith("the evidence is for other figures of board profile assumed-pingpong: ")


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


def test_prove_trace_opens_as_json_and_shows_both_banks_at_work_at_once(tmp_path: Path) -> None:
    """Chrome's format: complete events with begin and length in microseconds; PING's compute runs while PONG moves."""
    trace = tmp_path / "deep" / "trace.json"
    board = ("--board", "sim", "--board-profile", "assumed-pingpong")
    _, said = run(*board, "--out", str(tmp_path / "e.json"), "--trace", str(trace), *SHORT)
    assert f"trace: {trace}" in said.replace("\n", "")
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    spans = {
        bank: [(e["ts"], e["ts"] + e["dur"], e["cat"], e["pid"]) for e in events if e["args"]["bank"] == bank]
        for bank in ("PING", "PONG")
    }
    together = [
        (one, other)
        for one in spans["PING"]
        for other in spans["PONG"]
        if one[3] == other[3] and min(one[1], other[1]) > max(one[0], other[0])
    ]
    assert {(one[2], other[2]) for one, other in together} >= {("compute", "h2d"), ("h2d", "compute")}
    assert ("compute", "compute") not in {(one[2], other[2]) for one, other in together}


def test_prove_that_never_ran_two_says_there_is_no_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    board = ("--board", "sim", "--board-profile", "calculet-2chip")
    _, said = run(*board, "--out", str(tmp_path / "e.json"), "--trace", str(trace), *SHORT)
    assert "no trace: no run with two jobs in flight came to its end" in said
    assert not trace.exists()


def test_prove_takes_a_package_on_disk_for_the_simulated_board(tmp_path: Path) -> None:
    package, out = tmp_path / "package", tmp_path / "evidence.json"
    pack_sim(load_geometry("smollm2-135m"), package, SimOptions(profiles=(1, 4)), SilentProgress())
    for board in ((), ("--board", "sim")):
        code, said = run(*board, "--model", str(package), "--out", str(out), *SHORT)
        assert code == 3, said
        evidence = load_evidence(out)
        assert (evidence.board, evidence.package_hash) == ("sim", open_package(package).hash)
