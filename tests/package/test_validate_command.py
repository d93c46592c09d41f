"""`calserve validate`: exit codes, the table, and the verdict as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from bad_packages import BAD
from drafts import lanes, toy
from typer.testing import CliRunner

from calserve.cli import pack, validate  # noqa: F401  (registers the commands)
from calserve.cli.app import app
from calserve.package.gates import Verdict

runner = CliRunner()


def run(*arguments: str | Path) -> tuple[int, str]:
    told = runner.invoke(app, ["validate", *map(str, arguments)], env={"COLUMNS": "200"})
    return told.exit_code, told.stdout + ("" if told.exit_code != 1 else told.stderr)


@pytest.mark.parametrize(
    ("rule", "flags", "code"),
    [("", (), 0), ("A13", (), 0), ("A13", ("--strict",), 2), ("D15", (), 2), ("", ("--strict", "--fast"), 0)],
)
def test_validate_ends_with_the_verdicts_code(rule: str, flags: tuple[str, ...], code: int, tmp_path: Path) -> None:
    root = BAD[rule](tmp_path / "p") if rule else toy().write(tmp_path / "p")
    assert run(root, *flags)[0] == code


def test_validate_prints_gates_findings_and_verdict(tmp_path: Path) -> None:
    code, output = run(BAD["D15"](tmp_path / "p"))
    assert code == 2
    rows = [line.split("│") for line in output.splitlines() if line.startswith("│")]
    assert [(row[1].strip(), row[3].strip()) for row in rows] == [
        ("A", "pass"), ("B", "pass"), ("C", "pass"), ("D", "FAIL (1)"), ("E", "not run"), ("F", "not run"),
    ]  # fmt: skip
    assert "D15 fail: On chip 0 sections toy.io and toy.kv overlap at address 2097152." in output
    assert output.rstrip().endswith("p: fail")


def test_validate_json_fits_the_schema_it_documents(tmp_path: Path) -> None:
    out = tmp_path / "verdict.json"
    code, output = run(BAD["B12"](tmp_path / "p"), "--json", out)
    verdict = msgspec.json.decode(out.read_bytes(), type=Verdict, strict=True)
    assert (code, verdict.verdict, verdict.exit_code) == (0, "pass_with_warnings", 0)
    assert [(f.rule, f.file) for f in verdict.findings] == [("B12", "notes.txt")]
    assert verdict.models[0].name == "toy"
    assert verdict.bytes_hashed > 1000
    assert "pass with warnings" in output


def test_validate_json_to_standard_output_is_nothing_else(tmp_path: Path) -> None:
    told = runner.invoke(app, ["validate", str(toy().write(tmp_path / "p")), "--fast", "--json", "-"])
    assert json.loads(told.stdout)["mode"] == "fast"


def test_validate_says_the_same_twice(tmp_path: Path) -> None:
    root = BAD["C12"](tmp_path / "p")
    assert run(root, "--json", "-") == run(root, "--json", "-")


def test_validate_fast_and_full_together_are_refused(tmp_path: Path) -> None:
    code, output = run(toy().write(tmp_path / "p"), "--fast", "--full")
    assert code == 1
    assert "choose one" in output


def test_validate_of_markup_in_a_name_shows_it_as_it_is(tmp_path: Path) -> None:
    root = toy().write(tmp_path / "p")
    (root / "[red]x").touch()
    assert "A11 fail: [red]x is not listed in checksums.sha256." in run(root)[1]


def test_validate_of_a_file_says_what_a_package_is(tmp_path: Path) -> None:
    (tmp_path / "p").touch()
    code, output = run(tmp_path / "p")
    assert code == 2
    assert "A01 fail: It is a file, and a package is a directory." in output


def test_validate_full_on_the_simulated_board_judges_goldens(tmp_path: Path) -> None:
    """The toy's vocabulary is none that this board can have, so configuring it is refused with the gate's rule."""
    draft = lanes()
    draft.compatibility["devices"] = ["assumed-lanes"]
    code, output = run(draft.write(tmp_path / "p"), "--full")
    assert code == 2
    assert "F11 fail: Model toy: the board did not configure it (code 19, invalid calbin)." in output


def test_validate_full_of_a_package_for_the_simulated_board_passes(tmp_path: Path) -> None:
    made = runner.invoke(app, ["pack", "--target", "sim", "--geometry", "smollm2-135m", "-o", str(tmp_path / "p")])
    assert made.exit_code == 0, made.output
    code, output = run(tmp_path / "p", "--full", "--strict")
    assert code == 0, output


@pytest.mark.slow
def test_validate_full_of_a_graph_that_is_none_names_the_gate(tmp_path: Path) -> None:
    code, output = run(toy().write(tmp_path / "p"), "--full")
    assert code == 2, output
    assert "F11 fail: Model toy: the board" in output


@pytest.mark.slow
def test_validate_full_on_the_embedded_board_passes(tiny_package: Path) -> None:
    code, output = run(tiny_package, "--full", "--strict")
    assert code == 0, output
    assert output.rstrip().endswith(": pass")
