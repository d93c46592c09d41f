"""Every rule rejects the package made for it, and nothing else does; gates stop where one failed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from bad_packages import BAD, BAD_BOARDS, GOOD_FACTS, ToyTrial, opening
from drafts import GOOD, pair, toy

from calserve.package.fault import PackageError
from calserve.package.gates import GATES, RULES, How, compatibility, inspect, verdict_of
from calserve.package.reader import open_models, open_package, read_tree


@pytest.fixture
def every_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the vendor's runtime is installed too."""
    usual = compatibility.runtime_version
    monkeypatch.setattr(compatibility, "runtime_version", lambda target: usual(target) or "0.7.6")


@pytest.mark.parametrize("rule", RULES)
def test_rule_has_a_bad_package_that_it_alone_rejects(
    rule: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    how = How()
    if rule != "F04":
        request.getfixturevalue("every_runtime")
    if RULES[rule].needs_board:
        write, trial = BAD_BOARDS[rule]
        how = How(open_trial=opening(trial))
    else:
        write = BAD[rule]
    inspection = inspect(write(tmp_path / "p"), how)
    assert {finding.rule.id: finding.sentence for finding in inspection.findings}.keys() == {rule}
    is_warning = RULES[rule].severity == "warning"
    assert verdict_of(inspection).verdict == ("pass_with_warnings" if is_warning else "fail")
    assert verdict_of(inspection).exit_code == (0 if is_warning else 2)
    assert verdict_of(inspection, is_strict=True).exit_code == 2


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_rule_is_an_id_a_sentence_and_a_severity(rule: object) -> None:
    assert re.fullmatch(r"[A-F]\d\d", rule.id)  # type: ignore[attr-defined]
    assert rule.sentence.endswith(".")  # type: ignore[attr-defined]
    assert rule.severity in ("fail", "warning")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", GOOD)
def test_good_package_passes_every_gate(kind: str, tmp_path: Path) -> None:
    verdict = verdict_of(inspect(GOOD[kind]().write(tmp_path / "p")), is_strict=True)
    assert verdict.findings == ()
    assert [gate.status for gate in verdict.gates] == ["passed"] * 6
    assert (verdict.verdict, verdict.exit_code, verdict.mode) == ("pass", 0, "default")
    assert [gate.gate for gate in verdict.gates] == list(GATES) == list("ABCDEF")


@pytest.mark.parametrize("rule", [rule for rule in BAD if RULES[rule].severity == "fail"])
def test_opening_a_bad_package_is_refused_with_the_rule(rule: str, tmp_path: Path) -> None:
    """One truth: whoever opens a package is told what `validate` says."""
    root = BAD[rule](tmp_path / "p")
    with pytest.raises(PackageError) as caught:
        open_models(root)
    assert caught.value.fault.rule == rule
    assert str(caught.value).startswith(f"{root}: ")
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", [rule for rule in BAD if RULES[rule].severity == "warning"])
def test_opening_a_package_with_a_warning_opens(rule: str, tmp_path: Path) -> None:
    assert len(open_models(BAD[rule](tmp_path / "p"))) == 1


@pytest.mark.parametrize(
    ("rule", "statuses"),
    [
        ("A12", ["failed"] + ["not_run"] * 5),
        ("B19", ["passed", "failed"] + ["not_run"] * 4),
        ("D15", ["passed"] * 3 + ["failed"] + ["not_run"] * 2),
        ("A13", ["warned"] + ["passed"] * 5),
        ("F03", ["passed"] * 5 + ["failed"]),
    ],
)
def test_gate_that_fails_stops_the_ones_behind_it(rule: str, statuses: list[str], tmp_path: Path) -> None:
    assert [gate.status for gate in inspect(BAD[rule](tmp_path / "p")).gates] == statuses


def test_board_is_not_opened_for_a_package_that_fails_before(tmp_path: Path) -> None:
    trial = ToyTrial(GOOD_FACTS)
    inspect(BAD["F03"](tmp_path / "p"), How(open_trial=opening(trial)))
    assert trial.tried == []


def test_full_tries_every_model_on_the_chips_it_is_pinned_to(tmp_path: Path) -> None:
    trial = ToyTrial(GOOD_FACTS)
    inspection = inspect(pair().write(tmp_path / "p"), How(open_trial=opening(trial)))
    assert trial.tried == [("a", (0,)), ("b", (1,))]
    assert (inspection.mode, inspection.findings) == ("full", ())


def test_full_tries_a_model_that_is_not_pinned_on_the_first_chips(tmp_path: Path) -> None:
    """Its addresses are relative, so that chip 1 in the plan is chip 0 of a board with one."""
    draft = toy()
    draft.model()["chip_mask"] = draft.graph("step")["chip_mask"] = 2
    for section in draft.memory["sections"]:
        section["chip_mask"] = 2
    draft.memory["chips"][0]["chip"] = 1
    trial = ToyTrial(GOOD_FACTS)
    assert inspect(draft.write(tmp_path / "p"), How(open_trial=opening(trial))).findings == ()
    assert trial.tried == [("toy", (0,))]


def test_fast_does_not_see_altered_contents_and_hashes_nothing(tmp_path: Path) -> None:
    inspection = inspect(BAD["A12"](tmp_path / "p"), How(is_hashed=False))
    assert (inspection.findings, inspection.bytes_hashed, inspection.mode) == ((), 0, "fast")


@pytest.mark.parametrize("rule", ["A10", "A11", "B09", "C09", "D15", "D24", "E01", "E04", "F03"])
def test_fast_sees_whatever_needs_no_hash(rule: str, tmp_path: Path) -> None:
    inspection = inspect(BAD[rule](tmp_path / "p"), How(is_hashed=False))
    assert [finding.rule.id for finding in inspection.findings] == [rule]


def test_fast_sees_weights_that_were_cut_short(tmp_path: Path) -> None:
    root = toy().write(tmp_path / "p")
    (root / "graphs/step.bin").write_bytes(bytes(500))
    failure = inspect(root, How(is_hashed=False)).failure
    assert failure is not None
    assert (failure.rule.id, failure.limit, failure.given) == ("D24", "1000", "500")


def test_finding_names_file_graph_and_values(tmp_path: Path) -> None:
    failure = inspect(BAD["C09"](tmp_path / "p")).failure
    assert failure is not None
    assert (failure.file, failure.model, failure.graph) == ("manifest.yaml", "toy", "step")
    assert (failure.limit, failure.given) == ("64", "63")
    assert failure.sentence == "Graph step of toy addresses 63 tokens, below the context 64."


def test_findings_of_one_gate_are_bounded_and_counted(tmp_path: Path) -> None:
    root = toy().write(tmp_path / "p")
    for number in range(150):
        (root / f"f{number:03}").touch()
    (gate, *_) = verdict_of(inspect(root)).gates
    assert (gate.findings, gate.dropped) == (100, 50)


def test_names_that_do_not_print_are_escaped_in_findings(tmp_path: Path) -> None:
    root = toy().write(tmp_path / "p")
    (root / "a\x1b[31m").touch()
    (root / os.fsdecode(b"b\xff")).touch()
    sentences = [finding.sentence for finding in inspect(root).findings]
    assert sentences == ["a\\x1b[31m is not listed in checksums.sha256.", "b\\udcff is not listed in checksums.sha256."]


def test_read_tree_stops_after_gate_b(tmp_path: Path) -> None:
    assert read_tree(BAD["D15"](tmp_path / "p")).memory.sections[2].address == 2 << 20


def test_open_package_of_two_models_says_so(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"holds 2 models \(a, b\)"):
        open_package(pair().write(tmp_path / "p"))
