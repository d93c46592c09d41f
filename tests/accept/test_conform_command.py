"""`calserve conform` and `calserve capabilities`: flags, files, tables, exit codes; and a board of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calserve.accept.conform.proofs import BY_ID, PROOFS
from calserve.accept.conform.record import load_conformance
from calserve.accept.vendor import items_for, vendor_items
from calserve.cli import main  # noqa: F401  (registers every command)
from calserve.cli.app import app
from calserve.runtime.contract import CAPABILITIES
from calserve.runtime.lock import RUNTIME_DIR_VARIABLE

DOCS = Path(__file__).parents[2] / "docs"
MUTE = """
from calserve.runtime.sim import sim_package
def make(model): return object(), sim_package()
"""
SHORT = ("--tokens", "20", "--steps", "10", "--repeats", "1")
CALCULET = ("--board", "sim", "--board-profile", "calculet-2chip")


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path / "runtime"))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evidence of the board in `docs/toy_board.py`, made as the document says."""
    path = tmp_path_factory.mktemp("toy") / "toy.json"
    code, said = run("conform", "--board-factory", f"{DOCS / 'toy_board.py'}:make", "-o", str(path))
    assert code == 0, said
    return path


def test_toy_board_of_the_document_passes_in_at_most_60_lines(toy: Path) -> None:
    record = load_conformance(toy)
    assert record.board == "toy"
    proven = {each.name for each in record.capabilities if each.state == "C0"}
    assert proven == {"batch_lanes", "incremental_prefill", "mixed_batch", "kv_trim", "resident_profiles"}
    assert record.broken == ()
    lines = (DOCS / "toy_board.py").read_text("utf-8").splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 120


def test_document_of_a_new_board_names_every_proof_and_the_toys_own_output(toy: Path) -> None:
    text = (DOCS / "new-board.md").read_text("utf-8")
    missing = [proof.id for proof in PROOFS if f"`{proof.id}`" not in text]
    assert missing == []
    record = load_conformance(toy)
    for proof_id in ("jobs", "batch_lanes", "inactive_lanes", "incremental_prefill", "mixed_batch"):
        assert f"{proof_id}: {record.proof(proof_id).verdict}: {record.proof(proof_id).sentence}" in text


def test_runbook_of_a_new_model_has_eleven_gates_and_no_command_that_is_not_there() -> None:
    text = (DOCS / "new-model.md").read_text("utf-8")
    gates = text.split("\n## ")[1:]
    assert [gate.split(":")[0] for gate in gates] == [f"G{number}" for number in range(11)]
    for gate in gates:
        assert "\nInput: " in gate
        assert "\n$ calserve " in gate
        assert "\nFalls back to: " in gate
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {str(group.name) for group in app.registered_groups}
    used = {line.split()[2] for line in text.splitlines() if line.startswith("$ calserve ")}
    assert used <= known


@pytest.mark.parametrize(
    ("broken", "mended", "proof_id", "said"),
    [
        ('for lane in np.flatnonzero(at["valid"])', "for lane in range(2)", "inactive_lanes", "after jobs without it"),
        ("self.cells[lane, end - count : end]", "self.cells[lane, :count]", "incremental_prefill", "pieces"),
        ("return 17 if self.flying else", "return", "unload", "closes while a job"),
        ('np.nan if name == "logits" else 0', "0", "buffers", "reads as a result"),
        ("done.generation, c.Sta", "done.generation + 1, c.Sta", "jobs", "names job"),
    ],
)  # fmt: skip
def test_toy_board_with_one_line_wrong_fails_that_proof(
    tmp_path: Path, broken: str, mended: str, proof_id: str, said: str
) -> None:
    text = (DOCS / "toy_board.py").read_text("utf-8")
    assert broken in text
    path = tmp_path / "board.py"
    text = text.replace(broken, mended)
    if mended.startswith("for lane in range"):  # an unused row is run as one token 0 at its first position
        text = text.replace(
            'at["counts"][lane], at["lengths"][lane]', 'max(1, at["counts"][lane]), max(1, at["lengths"][lane])'
        )
    path.write_text(text)
    _, said_all = run("conform", "--board-factory", f"{path}:make", "-o", str(tmp_path / "e.json"))
    proof = load_conformance(tmp_path / "e.json").proof(proof_id)
    assert proof.verdict == "failed", said_all
    assert said in proof.sentence


def test_conform_of_a_broken_board_leaves_with_three_and_says_what(tmp_path: Path) -> None:
    path = tmp_path / "board.py"
    text = (DOCS / "toy_board.py").read_text("utf-8")
    path.write_text(text.replace("return 17 if self.flying else", "return"))
    code, said = run("conform", "--board-factory", f"{path}:make")
    assert code == 3
    assert "unload: a session closes while a job of it is in flight" in said


def test_conform_on_a_board_that_claims_too_much_leaves_with_three(tmp_path: Path) -> None:
    path = tmp_path / "board.py"
    text = (DOCS / "toy_board.py").read_text("utf-8")
    claim = '{"chip_reset": c.Evidence.C0, "batch_lanes": c.Evidence.C0}, {"toy"'
    path.write_text(text.replace('{}, {"toy"', claim))
    code, said = run("conform", "--board-factory", f"{path}:make")
    assert code == 3
    assert "claimed, and not proven here: chip_reset" in said


def test_conform_of_the_specified_board_as_json_claims_nothing_and_leaves_with_zero(tmp_path: Path) -> None:
    out = tmp_path / "e.json"
    result = CliRunner().invoke(app, ["conform", *CALCULET, "--json", "-o", str(out), *SHORT])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told == json.loads(out.read_text())
    assert [proof["id"] for proof in told["proofs"]] == list(BY_ID)
    lengths = next(proof for proof in told["proofs"] if proof["id"] == "prompt_lengths")
    assert lengths["figures"]["lengths"] == "1 2 15 16 17 127 128 1024 4095 4096 40959 40960"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("board.py", "takes FILE.py:function"),
        ("nowhere.py:make", "is not a Python file"),
        ("{tmp}/empty.py:make", "has no function make"),
        ("{tmp}/raises.py:make", "cannot be loaded: ValueError: no"),
        ("{tmp}/wrong.py:make", "must give a board and its BoardPackage"),
        ("{tmp}/fails.py:make", "make raised RuntimeError: no driver"),
        ("{tmp}/mute.py:make", "describe of its board raised AttributeError"),
        ("{tmp}/package/deep/board.py:make", "nothing in a package is ever run"),
    ],
)
def test_board_factory_that_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path, named: str, said: str) -> None:
    files = {
        "empty.py": "",
        "raises.py": "raise ValueError('no')",
        "wrong.py": "def make(model): return 1",
        "fails.py": "def make(model): raise RuntimeError('no driver')",
        "mute.py": MUTE,
        "package/manifest.yaml": "",
        "package/deep/board.py": "open('ran', 'w')\ndef make(model): return 1",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code, output = run("conform", "--board-factory", named.replace("{tmp}", str(tmp_path)))
    assert code == 1
    assert said in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--model needs a package directory"),
        (("--model", "nowhere"), "nowhere"),
        (("--board", "sim", "--board-profile", "nothing"), "nothing"),
        (("--board", "sim", "--soak", "nowhere.json"), "nowhere.json"),
        (("--board", "sim", "--out", str(DOCS)), "is a directory"),
        (
            ("--board", "sim", "--board-factory", f"{DOCS / 'toy_board.py'}:make"),
            "--board-factory brings its own board",
        ),
    ],
)
def test_conform_with_wrong_flags_is_refused_in_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    code, output = run("conform", *arguments)
    assert code == 1
    assert said in output
    assert output.count("\n") == 1


def capabilities(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["capabilities", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def states(told: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["state"] for row in told["capabilities"]}


def test_capabilities_without_evidence_are_what_the_board_suite_proves() -> None:
    told = capabilities("--board", "sim")
    assert list(states(told)) == list(CAPABILITIES)
    assert states(told)["batch_lanes"] == "C0"
    behind = {row["name"]: row["behind"] for row in told["capabilities"]}
    assert "contract suite" in behind["batch_lanes"]
    # Declared by the profile, and used by no server without evidence.
    assert states(told)["concurrent_jobs"] == "C1"
    code, table = run("capabilities", "--board", "sim")
    assert code == 0
    assert "C0 (simulated)" in table


def test_capabilities_with_evidence_name_the_run_and_with_anothers_say_void(tmp_path: Path) -> None:
    out = tmp_path / "e.json"
    run("conform", *CALCULET, "-o", str(out), *SHORT)
    told = capabilities(*CALCULET, "--evidence", str(out))
    assert states(told)["kv_trim"] == "C0"
    assert "void" not in told
    other = capabilities("--board", "sim", "--evidence", str(out))
    assert "profile calculet-2chip, not assumed-lanes" in other["void"]
    assert states(other)["kv_trim"] == "C3"


def test_capabilities_of_the_vendor_cover_everything_below_c0_with_an_item_and_a_proof() -> None:
    told = capabilities(*CALCULET, "--vendor")
    below = {name for name, state in states(told).items() if state != "C0"}
    assert {name for item in told["vendor"] for name in item["unlocks"]} == below
    priorities = [item["priority"] for item in told["vendor"]]
    assert priorities == sorted(priorities)
    assert {"P0", "P1"} == set(priorities)
    code, lines = run("capabilities", *CALCULET, "--vendor")
    assert code == 0
    assert "accepted by" in lines


def test_vendor_items_of_a_board_that_has_everything_are_none() -> None:
    assert items_for(()) == ()


def test_vendor_items_say_source_proof_and_capability_and_have_one_id_each() -> None:
    items = vendor_items()
    assert len({item.id for item in items}) == len(items)
    assert {name for item in items for name in item.unlocks} == set(CAPABILITIES)
    sources = "".join(item.source for item in items)
    for number in range(1, 9):
        assert f"seed 004, section 15.1, item {number}" in sources
    for number in range(1, 11):
        assert f"seed 004, section 15.2, item {number}" in sources
    assert "seed 003, section 14" in sources
    assert "seed 002, section 20" in sources
