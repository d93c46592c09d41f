"""The evidence file of a conformance run: what follows from it, for what it is void, and what a server does with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conform_rig import conform, record_of, rig_of, small

from calserve.accept.claims import claims_of, load_claims, why_no_claims, why_one_job
from calserve.accept.conform.record import Conformance, load_conformance, state_of, write_conformance
from calserve.accept.evidence import EvidenceError, why_void
from calserve.accept.proven import ProvenBoard
from calserve.runtime.contract import Evidence


@pytest.fixture(scope="module")
def run() -> Conformance:
    return conform(small())


def test_record_written_reads_back_the_same(run: Conformance, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "conform.json"
    write_conformance(run, path)
    assert load_conformance(path) == run
    assert next(iter(json.loads(path.read_text()))) == "schema"


def test_record_names_board_package_versions_figures_commit_and_date(run: Conformance) -> None:
    rig = rig_of(small())
    assert (run.board, run.simulated, run.package_hash) == ("sim", True, rig.package.hash)
    assert run.versions == {"runtime": "sim 0.7.6", "profile": "assumed-lanes"}
    assert run.figures_sha256 == small().sha256()
    assert (run.made.commit, run.made.date) == ("0123abc", "2026-08-02T00:00:00Z")


def test_record_answers_every_row_of_the_contract_and_says_what_it_cannot(run: Conformance) -> None:
    rows = {answer.row for answer in run.answers}
    assert rows == {
        "address_space", "configure", "submit", "queue", "kv", "memory", "reset", "unload", "errors", "observation",
    }  # fmt: skip
    unmeasured = [answer for answer in run.answers if not answer.is_measured]
    assert {answer.row for answer in unmeasured} == {"address_space", "submit", "kv", "reset", "errors"}
    assert all(answer.answer.startswith("not answerable here: ") for answer in unmeasured)
    assert all(answer.answer for answer in run.answers)


@pytest.mark.parametrize(
    ("declared", "verdicts", "state"),
    [
        ("C0", ["passed"], "C0"),
        ("C3", ["passed", "passed"], "C0"),
        ("C0", ["passed", "failed"], "C1"),
        ("C0", ["not_run"], "C1"),
        ("C0", ["not_supported"], "C1"),
        ("C3", ["failed"], "C3"),
        ("C2", ["not_supported"], "C2"),
        ("C3", ["passed", "not_run"], "C3"),
        ("C0", [], "C1"),
    ],
)
def test_state_follows_from_declaration_and_proofs(declared: Any, verdicts: list[str], state: str) -> None:
    assert state_of(declared, verdicts) == state


def changed(run: Conformance, tmp_path: Path, change: Any) -> Path:
    tree = msgspec.to_builtins(run)
    change(tree)
    path = tmp_path / "conform.json"
    path.write_text(json.dumps(tree))
    return path


def raise_state(tree: Any) -> None:
    next(each for each in tree["capabilities"] if each["name"] == "kv_copy")["state"] = "C0"


def drop_proof(tree: Any) -> None:
    tree["proofs"] = tree["proofs"][1:]


def double_proof(tree: Any) -> None:
    tree["proofs"] = [*tree["proofs"], tree["proofs"][0]]


def pass_jobs(tree: Any) -> None:
    next(each for each in tree["proofs"] if each["id"] == "concurrent_jobs")["verdict"] = "passed"
    next(each for each in tree["capabilities"] if each["name"] == "concurrent_jobs")["state"] = "C0"


def other_inner(tree: Any) -> None:
    tree["concurrent_jobs"]["package_hash"] = "ab" * 32


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (raise_state, "says C0 of kv_copy, but its proofs give C3"),
        (drop_proof, "the proof 'jobs' is not there once"),
        (double_proof, "the proof 'jobs' is not there once"),
        (pass_jobs, "concurrent_jobs passed, and its evidence says C1"),
        (other_inner, "concurrent_jobs is for another package_hash"),
        (lambda tree: tree.update(schema="calserve-conformance/v2"), "schema must be"),
        (lambda tree: tree.update(extra=1), "extra"),
        (lambda tree: tree["proofs"][0].update(verdict="fine"), "verdict"),
    ],
)
def test_record_that_was_changed_is_refused_in_one_sentence(
    run: Conformance, tmp_path: Path, change: Any, said: str
) -> None:
    path = changed(run, tmp_path, change)
    with pytest.raises(EvidenceError, match=said) as caught:
        load_conformance(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"package_hash": "ab" * 32}, "for package"),
        ({"versions": {"runtime": "other", "profile": "assumed-lanes"}}, "runtime sim 0.7.6, not other"),
        ({"figures_sha256": "cd" * 32}, "other figures of board profile"),
        ({"name": "another"}, "for the simulated board sim"),
        ({"simulated": False}, "for the simulated board sim"),
    ],
)
def test_record_of_another_package_version_or_board_is_void_and_says_which(
    run: Conformance, change: dict[str, Any], said: str
) -> None:
    package_hash = change.pop("package_hash", run.package_hash)
    facts = replace(rig_of(small()).facts, **change)
    assert said in why_void(run, facts, package_hash)


def claims_from(tmp_path: Path, record: Conformance) -> Any:
    path = tmp_path / "conform.json"
    write_conformance(record, path)
    return load_claims(path)


def test_claims_raise_what_passed_and_lower_what_failed(tmp_path: Path) -> None:
    rig = rig_of(small())
    record = record_of(rig, batch_lanes="failed", mixed_batch="passed", kv_share="not_supported", kv_copy="not_run")
    stated = claims_of(claims_from(tmp_path, record), rig.facts, rig.package.hash)
    assert stated["batch_lanes"].state is Evidence.C1
    assert (stated["mixed_batch"].state, stated["incremental_prefill"].state) == (Evidence.C0, Evidence.C0)
    assert "2026-08-02" in stated["incremental_prefill"].proof
    assert not {"kv_share", "kv_copy", "concurrent_jobs"} & set(stated)


def test_claims_of_a_void_record_change_nothing(tmp_path: Path) -> None:
    rig = rig_of(small())
    claims = claims_from(tmp_path, record_of(rig, batch_lanes="failed"))
    assert claims_of(claims, rig.facts, "ab" * 32) == {}
    assert "for package" in why_no_claims(claims, rig.facts, "ab" * 32)
    assert claims_of(None, rig.facts, rig.package.hash) == {}


def test_board_with_claims_describes_them_and_drops_the_suite_it_no_longer_rests_on(tmp_path: Path) -> None:
    rig = rig_of(small())
    record = record_of(rig, batch_lanes="failed", mixed_batch="passed")
    stated = claims_of(claims_from(tmp_path, record), rig.facts, rig.package.hash)
    facts = ProvenBoard(rig.board, "concurrent_jobs", "", stated).describe()
    assert facts.capabilities["batch_lanes"] is Evidence.C1
    assert "batch_lanes" not in facts.proven_by
    assert facts.capabilities["mixed_batch"] is Evidence.C0
    assert "conform.json" in facts.proven_by["mixed_batch"]
    assert facts.capabilities["concurrent_jobs"] is Evidence.C1


def test_board_without_evidence_keeps_its_declaration_proven_by_the_board_suite() -> None:
    rig = rig_of(small())
    facts = ProvenBoard(rig.board, "concurrent_jobs", "").describe()
    assert facts.capabilities["batch_lanes"] is Evidence.C0
    assert "contract suite" in facts.proven_by["batch_lanes"]


def test_record_without_proof_of_two_jobs_is_nothing_to_warn_of(tmp_path: Path, run: Conformance) -> None:
    claims = claims_from(tmp_path, run)
    assert claims.jobs is not None
    assert why_one_job(claims, None, rig_of(small()).facts, run.package_hash) == ""
    alone = replace(claims, conformance=None)
    assert "C1" in why_one_job(alone, None, rig_of(small()).facts, run.package_hash)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "calserve-conformance/v1"}', "\x00"])
def test_file_that_is_no_evidence_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(text)
    with pytest.raises(EvidenceError) as caught:
        load_claims(path)
    assert "\n" not in str(caught.value)
