"""Where commands write: looked at before they work, one sentence, and nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from calserve.cli.app import app
from calserve.cli.outputs import check_directory, check_file
from calserve.cli.refusals import Refusal
from calserve.whole_file import replace_file

SIM = ("prove", "concurrent-jobs", "--board", "sim")
# Every command that writes what it found, with the flag that says where; --help lists them (the last test).
FILES = {
    "-o": SIM,
    "--trace": (*SIM, "-o", "evidence.json"),
    "--out": ("conform", "--board", "sim"),
    "--record": ("soak",),
    "--report": ("soak",),
    "--json of bench": ("bench", "--model", "nowhere"),
    "--json of run": ("run", "nowhere", "--golden"),
    "--json of validate": ("validate", "nowhere"),
    "--record of plan": ("plan", "nowhere", "--measure"),
}
DIRECTORIES = {
    "--records": ("soak",),
    "--out": ("soak", "--wall"),
    "-o of pack": ("pack", "nowhere"),
    "-o of combine": ("combine", "nowhere", "nowhere"),
}


def calserve(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def flag_of(name: str) -> str:
    return name.split(maxsplit=1)[0]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", ["", ".", "/", "taken"], ids=repr)
def test_directory_where_a_file_is_due_is_refused_before_any_work(tmp_path: Path, name: str, place: str) -> None:
    (tmp_path / "taken").mkdir()
    told = calserve(*FILES[name], flag_of(name), place)
    assert told.exit_code == 1
    (line,) = told.output.splitlines()
    assert line.startswith("calserve: ")
    assert line.endswith(f"; {flag_of(name)} takes a file.")
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("name", FILES)
def test_file_in_the_way_of_a_directory_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("kept")
    told = calserve(*FILES[name], flag_of(name), "file/deep/here.json")
    assert (told.exit_code, told.output) == (
        1,
        f"calserve: file is no directory, so {flag_of(name)} cannot put a file there.\n",
    )
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("name", DIRECTORIES)
def test_file_where_a_directory_is_due_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("kept")
    told = calserve(*DIRECTORIES[name], flag_of(name), "file")
    assert (told.exit_code, told.output) == (1, f"calserve: file is no directory; {flag_of(name)} takes one.\n")


def test_device_in_the_place_of_a_file_is_not_replaced() -> None:
    with pytest.raises(Refusal, match="/dev/null is no regular file, and --record would take its place"):
        check_file(Path("/dev/null"), "--record")


@pytest.mark.parametrize("check", [check_file, check_directory])
def test_place_on_a_file_system_that_takes_nothing_is_refused(check: object) -> None:
    """Root too: no mode says so."""
    with pytest.raises(Refusal, match=r"^/proc(/self)?: .*, so --out cannot put (a file|files) there\.$"):
        check(Path("/proc/self/none/here"), "--out")  # type: ignore[operator]


@pytest.mark.parametrize("name", ["x" * 300, "nul\0"])
def test_name_that_no_file_has_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(Refusal) as told:
        check_file(Path(name), "-o")
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 300


def test_place_that_is_not_there_yet_is_fine_and_is_not_made(tmp_path: Path) -> None:
    check_file(tmp_path / "new" / "deep" / "a.json", "-o")
    check_directory(tmp_path / "new" / "deep", "--out")
    check_file(None, "-o")
    (tmp_path / "old.json").write_text("kept")
    check_file(tmp_path / "old.json", "-o")
    assert (tmp_path / "old.json").read_text() == "kept"
    assert [each.name for each in tmp_path.iterdir()] == ["old.json"]


def test_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "a.json"
    replace_file(path, "first")
    assert path.read_text() == "first"

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="No space left") as told:
        replace_file(path, "second")
    assert told.value.filename == str(path)
    assert {each.name: each.read_text() for each in path.parent.iterdir()} == {"a.json": "first"}


@pytest.mark.parametrize(("rows", "most"), [("9", 4), ("5", 4)])
def test_more_rows_than_a_session_has_lanes_for_are_refused(rows: str, most: int, tmp_path: Path) -> None:
    told = calserve(*SIM, "--board-profile", "assumed-pingpong", "-o", "e.json", "--rows", rows)
    assert (told.exit_code, told.output) == (
        1,
        f"calserve: --rows is at most {most} with this package: two sets of {rows} sequences need "
        f"{2 * int(rows)} lanes, and it has 8.\n",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("conform", "--model", "p", "--out", "p/ev.json"),
        ("prove", "concurrent-jobs", "--model", "p", "-o", "p/ev.json"),
        ("prove", "concurrent-jobs", "--model", "p", "-o", "ev.json", "--trace", "p/t.json"),
        ("run", "p", "--golden", "--json", "p/r.json"),
        ("validate", "p", "--json", "p/v.json"),
        ("plan", "p", "--measure", "--record", "p/m.json"),
        ("bench", "--model", "p", "--json", "p/b.json"),
        ("combine", "p", "q", "-o", "p/x"),
        ("combine", "q", "p", "-o", "q/../p/x"),
        ("pack", "p", "-o", "p/x"),
        ("sign", "p", "--key", "p/k.key"),
    ],
    ids=lambda words: f"{words[0]}-{words[-2]}",
)
def test_place_inside_the_package_that_is_read_is_refused_before_any_work(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    for name in "pq":
        (tmp_path / name).mkdir()
    told = calserve(*words)
    assert told.exit_code == 1
    assert told.output == f"calserve: {words[-1]} is inside p, which is read; {words[-2]} must be somewhere else.\n"
    assert list((tmp_path / "p").iterdir()) == []


def test_place_that_a_link_leads_into_the_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "link").symlink_to("p")
    with pytest.raises(Refusal, match="is inside p, which is read"):
        check_file(Path("link/v.json"), "--json", "p")
    check_file(Path("p2.json"), "--json", "p", None, "p2")
