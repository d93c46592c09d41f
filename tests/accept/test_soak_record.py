"""What a soak record proves, and which record proves nothing: another's, one that is too short, one that was edited."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from calserve.accept.evidence import EvidenceError
from calserve.accept.soak_record import SoakProof, check_soak, content_digest, load_soak
from calserve.runtime.contract import BoardFacts
from calserve.simulate.record import content_digest as writers_digest

HASH, OTHER_HASH = "ab" * 32, "cd" * 32
VERSIONS = {"runtime": "1.0", "profile": "p"}
FIGURES, OTHER_FIGURES = "12" * 32, "34" * 32
FACTS = BoardFacts("some", True, (), MappingProxyType({}), MappingProxyType(VERSIONS), figures_sha256=FIGURES)
COMMIT = "0123abc" + "0" * 33
HOUR = 3_600_000_000_000

SOAK = SoakProof("0123abc", "p", HASH, VERSIONS, 24.0, 2, "clean", FIGURES)
PROOF = {
    "profile": "p",
    "package_hash": HASH,
    "versions": VERSIONS,
    "figures_sha256": FIGURES,
    "max_in_flight": 2,
}


def day() -> dict[str, Any]:
    """A record of 24 eras of an hour, with 9,000 requests each."""
    return {
        "schema": "calserve-soak-record/v1",
        "made": {"commit": "0123abc", "version": "0", "python": "3"},
        "verdict": "clean",
        "hours": 24.0,
        "plan": {
            "seed": 7,
            "eras": [{"safety_ns": HOUR - 10**9, "liveness_ns": 10**9, "number": n} for n in range(24)],
        },
        "hashes": [f"{n:064x}" for n in range(24)],
        "marks": [{"virtual_ns": HOUR + 35, "requests": 9000, "jobs": 20000, "events": 60000} for _ in range(24)],
        "proof": PROOF,
    }


def sealed(tree: dict[str, Any]) -> dict[str, Any]:
    """With its digest, made as the format says it and not as the code does."""
    plain = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return {**tree, "content_sha256": hashlib.sha256(plain.encode()).hexdigest()}


def soak_file(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(sealed({**day(), **changes})))
    return path


def test_soak_record_reads_as_what_it_proves(tmp_path: Path) -> None:
    assert load_soak(soak_file(tmp_path / "soak.json")) == SOAK
    assert check_soak(SOAK, FACTS, HASH).passed


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"hours": 23.9}, "lasted 23.9 h"),
        ({"verdict": "weak"}, "verdict is weak"),
        ({"max_in_flight": 1}, "at most 1 in flight"),
        ({"package_hash": OTHER_HASH}, "another package"),
        ({"versions": {"runtime": "0.9"}}, "other versions"),
        ({"profile": "q"}, "profile 'q'"),
        ({"commit": "unknown"}, "commit"),
        ({"commit": "0123abc+"}, "the source had changes that commit 0123abc does not have"),
        ({"figures_sha256": OTHER_FIGURES}, "ran on other figures of board profile p: their digest was 343434343434"),
        ({"figures_sha256": ""}, "their digest was none, now it is 121212121212"),
    ],
)
def test_soak_that_is_not_this_one_does_not_count(change: dict[str, Any], doubt: str) -> None:
    check = check_soak(msgspec.structs.replace(SOAK, **change), FACTS, HASH)
    assert not check.passed
    assert doubt in str(check.figures["doubt"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"proof": {}}, "proves nothing"),
        ({"proof": None}, "proves nothing"),
        ({"schema": "calserve-soak/v1"}, "schema must be"),
        ({"hours": "24"}, "hours"),
        ({"made": None}, "commit"),
        ({"proof": {"profile": "p", "package_hash": HASH, "versions": VERSIONS}}, "max_in_flight"),
        ({"proof": {"hours": 24.0}}, r"proof\.hours"),
        ({"proof": {**PROOF, "content_doubt": ""}}, r"proof\.content_doubt"),
        ({"proof": {**PROOF, "figures_sha256": "abc"}}, "figures_sha256"),
    ],
)
def test_soak_record_that_does_not_say_enough_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(EvidenceError, match=said):
        load_soak(soak_file(tmp_path / "soak.json", **change))


def test_soak_record_of_before_the_digest_reads_and_does_not_count(tmp_path: Path) -> None:
    old = {name: told for name, told in PROOF.items() if name != "figures_sha256"}
    soak = load_soak(soak_file(tmp_path / "soak.json", proof=old))
    assert not check_soak(soak, FACTS, HASH).passed


def test_soak_of_a_changed_tree_is_refused_in_one_sentence() -> None:
    check = check_soak(msgspec.structs.replace(SOAK, commit=COMMIT + "+"), FACTS, HASH)
    assert check.figures["doubt"] == (
        "the source had changes that commit 0123abc00000 does not have, so nobody can run it again"
    )


def four_minutes() -> dict[str, Any]:
    return {
        **day(),
        "hours": 4 / 60,
        "plan": {"seed": 7, "eras": [{"safety_ns": HOUR // 20, "liveness_ns": HOUR // 60, "number": 0}]},
        "hashes": ["00" * 32],
        "marks": [{"virtual_ns": HOUR // 15, "requests": 900, "jobs": 2000, "events": 6000}],
    }


def doubt_about(tmp_path: Path, tree: dict[str, Any]) -> str:
    (tmp_path / "soak.json").write_text(json.dumps(tree))
    check = check_soak(load_soak(tmp_path / "soak.json"), FACTS, HASH)
    assert not check.passed
    return str(check.figures["doubt"])


def test_record_of_minutes_with_another_number_of_hours_does_not_count(tmp_path: Path) -> None:
    assert doubt_about(tmp_path, sealed({**four_minutes(), "hours": 24.0})) == (
        "it says 24 h, and the eras of its plan are 0.0666667 h"
    )


def test_record_of_minutes_with_more_eras_in_its_plan_does_not_count(tmp_path: Path) -> None:
    tree = {**four_minutes(), "hours": 24.0, "plan": day()["plan"]}
    assert doubt_about(tmp_path, sealed(tree)) == "it has 1 hashes and the counts of 1 eras for 24 in its plan"


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        (lambda tree: tree["marks"][3].update(virtual_ns=HOUR - 1), "era 3 took"),
        (lambda tree: tree["marks"][23].update(requests=4165), "era 23 had 4165 requests in 20000 jobs, not 4166"),
        (lambda tree: tree["marks"][0].update(jobs=140), "era 0 had 9000 requests in 140 jobs"),
        (lambda tree: tree["marks"][0].update(events=19_999), "era 0 had"),
        (lambda tree: tree["hashes"].pop(), "it has 23 hashes"),
        (lambda tree: tree["hashes"].__setitem__(5, tree["hashes"][4]), "two of its eras have one hash"),
        (lambda tree: tree.pop("marks"), "the counts of 0 eras"),
        (lambda tree: tree.pop("plan"), "it does not say what it was made of"),
    ],
)
def test_record_that_is_not_of_a_day_of_work_does_not_count(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], doubt: str
) -> None:
    tree = copy.deepcopy(day())
    change(tree)
    assert doubt in doubt_about(tmp_path, sealed(tree))


def test_record_that_was_changed_after_it_was_written_does_not_count(tmp_path: Path) -> None:
    tree = sealed(day())
    tree["made"] = {**tree["made"], "commit": COMMIT}
    assert doubt_about(tmp_path, tree) == "it was changed after it was written"


def test_record_without_a_digest_does_not_count(tmp_path: Path) -> None:
    assert doubt_about(tmp_path, day()) == "it has no digest of its content, as records of this version have"


def test_digest_of_the_reader_is_the_writers() -> None:
    tree = {"b": [1.5, "\u00e9"], "a": {"y": None, "x": 24.0}, "content_sha256": "old"}
    plain = b'{"a":{"x":24.0,"y":null},"b":[1.5,"\\u00e9"]}'
    assert content_digest(tree) == writers_digest(tree) == hashlib.sha256(plain).hexdigest()
