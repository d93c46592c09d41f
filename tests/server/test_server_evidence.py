"""From a proof to a server with two jobs in flight: the soak's record, the evidence, `serve`, and what it shows.

The day-long soak is the one part a test cannot run: `double_of_a_day` makes the record with the soak's own writer from
a run of a minute, then says 24 hours and a clean commit. That file is a test double and is named so; without the
change it is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_rig import Server, Start, calserve, environment
from typer.testing import CliRunner

from calserve.accept.evidence import EvidenceRecord, load_evidence
from calserve.accept.soak_record import content_digest
from calserve.cli.app import app
from calserve.runtime.sim.oracle import greedy_tokens

pytestmark = pytest.mark.slow

BOARD = ("--board", "sim", "--board-profile", "assumed-pingpong")
HOUR_NS = 3_600_000_000_000
EOS, CONTROL = (0xF5, 0xC0), {0xC0, 0xC1, *range(0xF5, 0x100)}


@pytest.fixture(scope="module", autouse=True)
def _loud_again() -> Iterator[None]:
    """A soak in this process silences our loggers; the tests after these read them."""
    level = logging.getLogger("calserve").level
    yield
    logging.getLogger("calserve").setLevel(level)


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evidence")


@pytest.fixture(scope="module")
def minute(folder: Path) -> Path:
    """The record of a minute with two in flight on the board."""
    path = folder / "a-minute.json"
    flags = ("--minutes", "1", "--board-profile", "assumed-pingpong", "--max-in-flight", "2", "--record", str(path))
    code, said = invoke("soak", *flags)
    assert code == 0, said
    return path


@pytest.fixture(scope="module")
def double_of_a_day(minute: Path, folder: Path) -> Path:
    path = folder / "test-double-of-a-24h-soak.json"
    record = json.loads(minute.read_text())
    (era,), (mark,) = record["plan"]["eras"], record["marks"]
    times = -(-HOUR_NS // (era["safety_ns"] + era["liveness_ns"]))
    record["plan"]["eras"] = [{**era, "safety_ns": HOUR_NS - era["liveness_ns"]}] * 24
    record["marks"] = [{**{name: count * times for name, count in mark.items()}, "virtual_ns": HOUR_NS}] * 24
    record |= {"hours": 24.0, "hashes": [hashlib.sha256(str(n).encode()).hexdigest() for n in range(24)]}
    record["made"]["commit"] = "0" * 40  # the tree under test may have changes of its own
    path.write_text(json.dumps({**record, "content_sha256": content_digest(record)}))
    return path


@pytest.fixture(scope="module")
def proven(double_of_a_day: Path, folder: Path) -> Path:
    """The whole proof, at its full length."""
    path = folder / "evidence.json"
    code, said = invoke("prove", "concurrent-jobs", *BOARD, "--soak", str(double_of_a_day), "-o", str(path))
    assert code == 0, said
    return path


def metric(server: Server, name: str) -> float:
    text = httpx.get(f"{server.base}/metrics").text
    found = re.findall(rf"^calserve_{re.escape(name)}\S* (\S+)$", text, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def test_evidence_of_the_pingpong_board_is_c0_with_its_figures(proven: Path) -> None:
    """By hand: one in flight 0.05 + 0.6 + 5 + 0.6 + 0.3 ms a step of four rows, two bound by the 5 ms of compute."""
    evidence = load_evidence(proven)
    assert (evidence.state, evidence.simulated, evidence.missing) == ("C0", True, ())
    figures = {check.name: check.figures for check in evidence.checks}
    for mode in ("fixed", "auto"):
        assert figures[f"correct_{mode}"]["wrong"] == 0
        assert int(figures[f"correct_{mode}"]["tokens_each"]) >= 1000
        assert figures[f"gain_{mode}"]["ratio"] == pytest.approx(6.55 / 5, rel=0.01)
        assert figures[f"tpot_{mode}"]["ratio"] == pytest.approx(5 / 6.55, rel=0.01)
        assert float(figures[f"overlap_{mode}"]["ping_share"]) > 0.3
        assert float(figures[f"overlap_{mode}"]["pong_share"]) > 0.3


def test_soak_of_a_minute_is_refused_as_too_short(minute: Path, folder: Path) -> None:
    out = folder / "of-a-minute.json"
    short = ("--tokens", "20", "--steps", "10", "--repeats", "1", "--rows", "1")
    _, said = invoke("prove", "concurrent-jobs", *BOARD, "--soak", str(minute), "-o", str(out), *short)
    evidence = load_evidence(out)
    assert not evidence.has_soak
    soak = next(check for check in evidence.checks if check.name == "soak_24h")
    assert str(soak.figures["doubt"]).startswith("it lasted 0.0")
    assert "soak_24h" in said[said.index("missing:") :]


def ask(server: Server, prompt: list[int], count: int) -> str:
    body = {"model": "sim-model", "prompt": prompt, "max_tokens": count, "temperature": 0}
    answer = httpx.post(f"{server.base}/v1/completions", json=body, timeout=60)
    return str(answer.json()["choices"][0]["text"])


def test_serve_with_evidence_has_two_jobs_in_flight_by_default_and_right_text(
    start_server: Start, proven: Path
) -> None:
    server = start_server(None, *BOARD, "--evidence", str(proven))
    assert metric(server, "max_jobs_in_flight") == 2
    prompts = [[3 * i + 1, i, 7] for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda prompt: ask(server, prompt, 40), prompts))
    for prompt, text in zip(prompts, texts, strict=True):
        tokens = greedy_tokens(prompt, 40, 256, "sim-model", EOS)
        assert text == bytes(token for token in tokens if token not in CONTROL).decode("utf-8", "replace")
    assert metric(server, "max_jobs_in_flight") == 2
    assert metric(server, "in_flight_lowered") == 0
    code, errors = server.stop()
    assert code == 0
    assert "is not used" not in errors


def test_serve_without_evidence_has_one_job_in_flight(start_server: Start) -> None:
    server = start_server(None, *BOARD)
    assert metric(server, "max_jobs_in_flight") == 1
    server.stop()


def changed(proven: Path, name: str, **changes: Any) -> Path:
    path = proven.parent / name
    path.write_text(json.dumps({**json.loads(proven.read_text()), **changes}))
    return path


def of_another(proven: Path, what: str) -> Path:
    evidence: EvidenceRecord = load_evidence(proven)
    versions = dict(evidence.versions)
    return {
        "package": lambda: changed(proven, "package.json", package_hash="ab" * 32),
        "version": lambda: changed(proven, "version.json", versions={**versions, "runtime": "sim 0.7.5"}),
        "figures": lambda: changed(proven, "figures.json", figures_sha256="ab" * 32),
        "profile": lambda: changed(proven, "profile.json", versions={**versions, "profile": "assumed-lanes"}),
    }[what]()


SAID = {
    "package": "the evidence is for package abababababab, not ",
    "version": "the evidence is for runtime sim 0.7.5, not sim 0.7.6",
    "figures": "the evidence is for other figures of board profile assumed-pingpong: their digest was abababababab",
    "profile": "the evidence is for profile assumed-lanes, not assumed-pingpong",
}


@pytest.mark.parametrize("what", list(SAID))
def test_serve_asked_for_two_with_evidence_of_something_else_is_refused_by_the_capabilitys_name(
    tmp_path: Path, proven: Path, what: str
) -> None:
    code, said = refused(tmp_path, "--evidence", str(of_another(proven, what)), "--set", "executor.max_inflight=2")
    assert code == 1
    assert "executor.max_inflight is 2, but the capability concurrent_jobs is not proven here" in said
    assert SAID[what] in said


def test_serve_asked_for_two_without_evidence_is_refused_by_the_capabilitys_name(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--set", "executor.max_inflight=2")
    assert code == 1
    assert "the capability concurrent_jobs is not proven here: there is no evidence" in said


def test_serve_with_evidence_of_something_else_says_so_and_has_one_job_in_flight(
    start_server: Start, proven: Path
) -> None:
    server = start_server(None, *BOARD, "--evidence", str(of_another(proven, "package")))
    assert metric(server, "max_jobs_in_flight") == 1
    code, errors = server.stop()
    assert code == 0
    assert f"is not used, one job in flight: {SAID['package']}" in errors


def refused(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        calserve("serve", "--port", "0", *BOARD, *arguments),
        capture_output=True, text=True, timeout=120, env=environment(tmp_path / "runtime"), check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]
