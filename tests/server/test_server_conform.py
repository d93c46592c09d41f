"""A server and the evidence of `calserve conform`: what passed is used, what failed is not, what is void is none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_rig import Start, calserve, environment
from typer.testing import CliRunner

from calserve.cli import main  # noqa: F401  (registers every command)
from calserve.cli.app import app
from calserve.runtime.sim.oracle import greedy_tokens

pytestmark = pytest.mark.slow

BOARD = ("--board", "sim", "--board-profile", "assumed-pingpong")
SHORT = ("--tokens", "20", "--steps", "10", "--repeats", "1")
CONTROL = {0xC0, 0xC1, *range(0xF5, 0x100)}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conform") / "evidence.json"
    result = CliRunner().invoke(app, ["conform", *BOARD, *SHORT, "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


def changed(evidence: Path, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    tree = json.loads(evidence.read_text())
    change(tree)
    path = evidence.parent / name
    path.write_text(json.dumps(tree))
    return path


def without_lanes(tree: dict[str, Any]) -> None:
    """As a board that mixes lanes up would have had it."""
    next(each for each in tree["proofs"] if each["id"] == "batch_lanes")["verdict"] = "failed"
    next(each for each in tree["capabilities"] if each["name"] == "batch_lanes")["state"] = "C1"


def of_another_package(tree: dict[str, Any]) -> None:
    tree["package_hash"] = "ab" * 32
    tree["concurrent_jobs"]["package_hash"] = "ab" * 32


def answer(base: str) -> None:
    body = {"model": "sim-model", "prompt": [3, 1, 4, 1, 5], "max_tokens": 12, "temperature": 0}
    text = httpx.post(f"{base}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
    tokens = greedy_tokens([3, 1, 4, 1, 5], 12, 256, "sim-model", (0xF5, 0xC0))
    assert text == bytes(token for token in tokens if token not in CONTROL).decode("utf-8", "replace")


def test_serve_with_evidence_of_its_board_and_package_uses_it(start_server: Start, evidence: Path) -> None:
    server = start_server(None, *BOARD, "--evidence", str(evidence))
    answer(server.base)
    code, errors = server.stop()
    assert code == 0
    assert "is not used" not in errors


def test_serve_does_not_use_what_the_evidence_disproves(start_server: Start, evidence: Path) -> None:
    lowered = changed(evidence, "lowered.json", without_lanes)
    server = start_server(None, *BOARD, "--evidence", str(lowered), "--set", "batch.profiles=[1]")
    answer(server.base)
    _, errors = server.stop()
    assert "batch_lanes is not proven here and is not used" in errors


def test_serve_asked_for_what_the_evidence_disproves_is_refused_by_the_capabilitys_name(
    tmp_path: Path, evidence: Path
) -> None:
    lowered = changed(evidence, "refused.json", without_lanes)
    done = subprocess.run(
        calserve("serve", "--port", "0", *BOARD, "--evidence", str(lowered), "--set", "batch.profiles=[1,4]"),
        capture_output=True, text=True, timeout=120, env=environment(tmp_path / "runtime"), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "the capability batch_lanes is not proven" in done.stderr


def test_serve_with_evidence_of_another_package_says_so_and_keeps_the_boards_declaration(
    start_server: Start, evidence: Path
) -> None:
    void = changed(evidence, "void.json", of_another_package)
    server = start_server(None, *BOARD, "--evidence", str(void), "--set", "batch.profiles=[1,4]")
    answer(server.base)
    code, errors = server.stop()
    assert code == 0
    assert "is not used: the evidence is for package abababababab" in errors
