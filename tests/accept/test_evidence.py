"""What counts as evidence, and what a server may do with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from calserve.accept.evidence import (
    REQUIRED,
    SOAK_CHECK,
    Check,
    EvidenceError,
    EvidenceRecord,
    allowed_in_flight,
    doubt_about,
    judge_checks,
    load_evidence,
    why_unused,
    write_evidence,
)
from calserve.accept.proven import ProvenBoard
from calserve.runtime.contract import BoardFacts, Evidence
from calserve.runtime.sim import PROFILES, SimBoard

HASH, OTHER_HASH = "ab" * 32, "cd" * 32
VERSIONS = {"runtime": "1.0", "profile": "p"}
FIGURES, OTHER_FIGURES = "12" * 32, "34" * 32
FACTS = BoardFacts("some", True, (), MappingProxyType({}), MappingProxyType(VERSIONS), figures_sha256=FIGURES)
COMMIT = "0123abc" + "0" * 33


def record(without: tuple[str, ...] = (), **changes: Any) -> EvidenceRecord:
    names = [name for name in (*REQUIRED, SOAK_CHECK) if name not in without]
    seen: dict[str, dict[str, Any]] = {SOAK_CHECK: {"commit": COMMIT}}
    checks = tuple(Check(name, True, "a bound", seen.get(name, {"ratio": 1.5})) for name in names)
    state, missing = judge_checks(checks)
    of_it = ("concurrent_jobs", state, "some", True, HASH, VERSIONS, {"tokens": 1000}, checks, missing, FIGURES)
    told = EvidenceRecord(*of_it)
    return msgspec.structs.replace(told, **changes)


def test_evidence_written_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "evidence.json"
    write_evidence(record(), path)
    assert load_evidence(path) == record()
    assert json.loads(path.read_text())["schema"] == "calserve-evidence/v1"


@pytest.mark.parametrize("name", REQUIRED)
def test_evidence_without_one_required_check_is_c1(name: str) -> None:
    assert (record((name,)).state, record((name,)).missing) == ("C1", (name,))


def with_soak(passed: bool, **figures: Any) -> EvidenceRecord:
    """Evidence whose soak says so."""
    checks = (*record((SOAK_CHECK,)).checks, Check(SOAK_CHECK, passed, "a bound", figures))
    return record(checks=checks, missing=judge_checks(checks)[1])


def test_evidence_without_the_soak_is_c0_and_says_what_is_missing() -> None:
    assert (record((SOAK_CHECK,)).state, record((SOAK_CHECK,)).missing) == ("C0", (SOAK_CHECK,))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "calserve-evidence/v2"}, "schema must be calserve-evidence/v1"),
        ({"state": "C0", "checks": []}, "says C0"),
        ({"missing": ["soak_24h"]}, "1 missing"),
        ({"package_hash": "abc"}, "package_hash"),
        ({"figures_sha256": "abc"}, "figures_sha256"),
        ({"extra": 1}, "extra"),
        ({"simulated": "yes"}, "simulated"),
        ({"capability": "batch_lanes"}, "capability"),
        ({"checks": [{"name": "invented", "passed": True, "bound": "", "figures": {}}]}, "no check 'invented'"),
        ({"checks": [{"name": "gain_auto", "passed": True, "bound": "", "figures": {}}] * 2}, "stands twice"),
    ],
)
def test_evidence_that_was_changed_is_refused_in_one_sentence(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps({**msgspec.to_builtins(record()), **change}))
    with pytest.raises(EvidenceError, match=said) as caught:
        load_evidence(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "\x00", '{"schema": "calserve-evidence/v1"}'])
def test_file_that_is_no_evidence_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(text)
    with pytest.raises(EvidenceError) as caught:
        load_evidence(path)
    assert "\n" not in str(caught.value)


def test_evidence_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"none\.json"):
        load_evidence(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("asked", "evidence", "allowed"),
    [
        (None, record(), 2),
        (None, record((SOAK_CHECK,)), 1),
        (None, with_soak(True, commit=COMMIT), 2),
        (None, with_soak(True, commit=COMMIT + "+"), 1),
        (None, with_soak(True, commit="unknown"), 1),
        (None, with_soak(True), 1),
        (None, with_soak(False, commit=COMMIT), 1),
        (2, with_soak(True, commit=COMMIT + "+"), 2),
        (None, record(("gain_auto",)), 1),
        (None, None, 1),
        (1, record(), 1),
        (1, None, 1),
        (2, record(), 2),
        (2, record((SOAK_CHECK,)), 2),
    ],
)
def test_allowed_in_flight_is_what_the_evidence_says(
    asked: int | None, evidence: EvidenceRecord | None, allowed: int
) -> None:
    assert allowed_in_flight(asked, FACTS, HASH, evidence) == allowed


@pytest.mark.parametrize(
    ("facts", "package", "evidence", "said"),
    [
        (FACTS, HASH, None, "there is no evidence"),
        (FACTS, OTHER_HASH, record(), "for package abababababab, not cdcdcdcdcdcd"),
        (replace(FACTS, versions=MappingProxyType({**VERSIONS, "runtime": "1.1"})), HASH, record(), "runtime 1.0, not"),
        (replace(FACTS, versions=MappingProxyType({})), HASH, record(), "profile p, not unknown"),
        (replace(FACTS, simulated=False), HASH, record(), "for the simulated board some"),
        (replace(FACTS, name="other"), HASH, record(), "board some"),
        (
            replace(FACTS, figures_sha256=OTHER_FIGURES),
            HASH,
            record(),
            "for other figures of board profile p: their digest was 121212121212, now it is 343434343434",
        ),
        (FACTS, HASH, record(figures_sha256=""), "their digest was none, now it is 121212121212"),
        (replace(FACTS, figures_sha256=""), HASH, record(), "their digest was 121212121212, now it is none"),
        (FACTS, HASH, record(("tpot_fixed", SOAK_CHECK)), "says C1, without tpot_fixed, soak_24h"),
    ],
)
def test_two_in_flight_without_valid_evidence_is_refused_by_name(
    facts: BoardFacts, package: str, evidence: EvidenceRecord | None, said: str
) -> None:
    refused = allowed_in_flight(2, facts, package, evidence)
    assert isinstance(refused, str)
    assert "concurrent_jobs" in refused
    assert said in refused
    assert allowed_in_flight(None, facts, package, evidence) == 1
    assert evidence is None or doubt_about(evidence, facts, package)


@pytest.mark.parametrize(
    ("asked", "package", "evidence", "said"),
    [
        (None, HASH, None, ""),
        (None, HASH, record(), ""),
        (None, OTHER_HASH, record(), "for package abababababab, not cdcdcdcdcdcd"),
        (None, HASH, record((SOAK_CHECK,)), "without soak_24h, which two jobs in flight need to be on by default"),
        (None, HASH, record(figures_sha256=OTHER_FIGURES), "for other figures of board profile p"),
        (
            None,
            HASH,
            with_soak(True, commit=COMMIT + "+"),
            "the source had changes that commit 0123abc00000 does not have, so nobody can run it again",
        ),
        (None, HASH, with_soak(False, doubt="it lasted 3 h"), "of the soak that was given, it lasted 3 h"),
        (1, OTHER_HASH, record(), ""),
        (2, HASH, record((SOAK_CHECK,)), ""),
    ],
)
def test_evidence_that_leaves_a_server_at_one_says_why(
    asked: int | None, package: str, evidence: EvidenceRecord | None, said: str
) -> None:
    why = why_unused(asked, FACTS, package, evidence)
    assert said in why
    assert bool(why) == bool(said)


def test_three_in_flight_are_refused_whatever_the_evidence() -> None:
    assert allowed_in_flight(3, FACTS, HASH, record()) == (
        "executor.max_inflight is 3, but the capability concurrent_jobs is not proven here: 2 are proven."
    )


# --- a board with evidence


def test_proven_board_declares_what_the_evidence_proves_and_nothing_without_it() -> None:
    board = SimBoard(PROFILES["calculet-2chip"])
    proven = ProvenBoard(board, "concurrent_jobs", "evidence.json").describe()
    assert proven.capabilities["concurrent_jobs"] is Evidence.C0
    assert proven.proven_by["concurrent_jobs"] == "evidence.json"
    assert proven.capabilities["batch_lanes"] is board.describe().capabilities["batch_lanes"]
    board.close()
    declaring = SimBoard(PROFILES["assumed-lanes"])
    without = ProvenBoard(declaring, "concurrent_jobs", "").describe()
    assert without.capabilities["concurrent_jobs"] is Evidence.C1
    assert "concurrent_jobs" not in without.proven_by
    declaring.close()
