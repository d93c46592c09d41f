"""The record of a pack, and packing again from it: the same bytes, or which file is not and why."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calserve.cli.app import app
from calserve.package import PackageError, open_package
from calserve.package.combine import CombineOptions, combine
from calserve.package.geometry import FOLDER as GEOMETRIES
from calserve.package.geometry import load_geometry
from calserve.package.pack import PackOptions, pack, replay
from calserve.package.pack.sim_target import SimOptions, pack_sim
from calserve.progress import SilentProgress
from calserve.runtime.sim.profile import FOLDER as PROFILES
from tiny_model import write_tiny_gguf

OPTIONS = PackOptions(profiles=(1, 2), context=256, weights="fp16", numerics="exact", alias="again")
RECORD = "build-provenance.json"


@pytest.fixture(scope="module")
def packed(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("packed") / "p"
    pack(tiny_gguf, target, OPTIONS, SilentProgress())
    return target


def record_of(packed: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((packed / RECORD).read_bytes())
    return value


def edited(packed: Path, path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**record_of(packed), **changes}))
    return path


def again(record: Path, source: str, target: Path, is_other_tools: bool = False) -> Any:
    return replay(record, source, target, PackOptions(), is_other_tools, SilentProgress())


def test_record_says_source_options_tools_and_command(packed: Path, tiny_gguf: Path) -> None:
    record = record_of(packed)
    assert record["source"]["sha256"] == hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    assert (record["source"]["kind"], record["source"]["name"]) == ("gguf", "tiny.gguf")
    assert record["tools"].keys() == {"calserve", "openvino", "nncf", "tokenizers", "numpy", "openvino-genai", "gguf"}
    assert record["quantization"] == {}
    assert " ".join(record["command"]) == (
        "calserve pack tiny.gguf -o DIR --profiles 1,2 --context 256 --weights fp16 --numerics exact "
        "--reference auto --alias again"
    )
    listed = dict(reversed(line.split("  ")) for line in (packed / "checksums.sha256").read_text().splitlines())
    assert record["outputs"] == {name: digest for name, digest in listed.items() if name != RECORD}


def test_replay_rebuilds_every_byte(packed: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    report = again(packed / RECORD, str(tiny_gguf), tmp_path / "q")
    assert (report.differing, report.tools) == ((), ())
    assert report.pack.hash == open_package(packed).hash
    names = sorted(path.relative_to(packed) for path in packed.rglob("*") if path.is_file())
    for name in names:
        assert (tmp_path / "q" / name).read_bytes() == (packed / name).read_bytes(), name


@pytest.mark.slow
def test_replay_takes_a_package_for_its_record_and_a_source_under_another_name(
    packed: Path, tiny_gguf: Path, tmp_path: Path
) -> None:
    shutil.copy(tiny_gguf, tmp_path / "renamed.gguf")
    report = again(packed, str(tmp_path / "renamed.gguf"), tmp_path / "q")
    assert report.pack.hash == open_package(packed).hash


@pytest.mark.slow
def test_replay_finds_the_recorded_source_in_the_working_directory(
    packed: Path, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PackageError, match=r"^tiny\.gguf is not in this directory; name it after --replay FILE\.$"):
        again(packed, "", tmp_path / "q")
    shutil.copy(tiny_gguf, tmp_path / "tiny.gguf")
    assert again(packed, "", tmp_path / "q").differing == ()


@pytest.mark.parametrize("name", ["../../etc/passwd", "x" * 4000])
def test_replay_record_that_names_a_way_to_a_place_is_taken_by_its_last_part(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source = {**record_of(packed)["source"], "name": name}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PackageError, match="is not in this directory"):
        again(edited(packed, tmp_path / "r.json", source=source), "", tmp_path / "q")


def test_replay_of_another_source_is_refused_before_any_work(packed: Path, tmp_path: Path) -> None:
    other = write_tiny_gguf(tmp_path / "other.gguf", **{"general.license": "mit"})
    with pytest.raises(PackageError) as caught:
        again(packed, str(other), tmp_path / "q")
    assert caught.value.fault.rule == "replay_source"
    assert not (tmp_path / "q").exists()


@pytest.mark.slow
def test_replay_with_other_tools_is_refused_until_allowed_and_says_which(
    packed: Path, tiny_gguf: Path, tmp_path: Path
) -> None:
    tools = {**record_of(packed)["tools"], "nncf": "0.1", "gone": "2.0"}
    record = edited(packed, tmp_path / "r.json", tools=tools)
    with pytest.raises(PackageError) as caught:
        again(record, str(tiny_gguf), tmp_path / "q")
    assert caught.value.fault.rule == "replay_tools"
    assert "nncf 0.1, here " in str(caught.value)
    assert "gone 2.0, here none" in str(caught.value)
    report = again(record, str(tiny_gguf), tmp_path / "q", is_other_tools=True)
    assert report.differing == ()
    assert [tool.split()[0] for tool in report.tools] == ["nncf", "gone"]


@pytest.mark.slow
def test_replay_names_the_files_that_came_out_differently(packed: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    outputs = {**record_of(packed)["outputs"], "goldens.json": "0" * 64, "gone.txt": "1" * 64}
    report = again(edited(packed, tmp_path / "r.json", outputs=outputs), str(tiny_gguf), tmp_path / "q")
    assert report.differing == ("goldens.json", "gone.txt")


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[" * 100_000, '{"source": 1}', "{" + '"a": 1,' * 1000 + '"b": 2}', "x" * (5 << 20)]
)
def test_replay_of_what_is_no_record_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(PackageError) as caught:
        again(tmp_path / "r.json", "", tmp_path / "q")
    assert caught.value.fault.rule == "provenance"
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"weights": "int3"}},
        {"options": None},
        {"extra": 1},
        {"tools": {"nncf": 3}},
        {"outputs": {"a": "short"}},
    ],
)
def test_replay_of_a_record_with_wrong_fields_is_a_sentence(
    packed: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(PackageError) as caught:
        again(edited(packed, tmp_path / "r.json", **changes), "", tmp_path / "q")
    assert caught.value.fault.rule == "provenance"


def test_replay_of_a_record_whose_options_cannot_be_is_refused_as_packing_refuses_them(
    packed: Path, tiny_gguf: Path, tmp_path: Path
) -> None:
    options = {**record_of(packed)["options"], "context": 10**12}
    with pytest.raises(PackageError, match="is too long"):
        again(edited(packed, tmp_path / "r.json", options=options), str(tiny_gguf), tmp_path / "q")


# Records of other ways to make a package.


def sim(target: Path, geometry: str = "smollm2-135m", **options: Any) -> Path:
    pack_sim(load_geometry(geometry), target, SimOptions(**options), SilentProgress())
    return target


@pytest.mark.parametrize(
    ("geometry", "options"),
    [
        ("smollm2-135m", {}),
        ("smollm2-135m", {"profiles": (1, 4), "context": 2048, "weights": "int4", "alias": "other"}),
        ("qwen3-30b-a3b", {}),
    ],
)
def test_replay_of_a_simulated_boards_package_rebuilds_every_byte(
    tmp_path: Path, geometry: str, options: dict[str, Any]
) -> None:
    made = sim(tmp_path / "p", geometry, **options)
    report = again(made / RECORD, "", tmp_path / "q")
    assert (report.differing, report.tools) == ((), ())
    assert report.pack.hash == open_package(made).hash
    for path in made.iterdir():
        assert (tmp_path / "q" / path.name).read_bytes() == path.read_bytes(), path.name


def test_replay_of_a_simulated_boards_package_finds_files_in_the_working_directory_or_where_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (GEOMETRIES / "smollm2-135m.yaml").read_text("utf-8").replace("name: smollm2-135m", "name: mine")
    profile = (PROFILES / "assumed-lanes.yaml").read_text("utf-8").replace("name: assumed-lanes", "name: my-board")
    for folder in (tmp_path / "there", tmp_path / "here"):
        folder.mkdir()
        (folder / "mine.yaml").write_text(text)
        (folder / "my-board.yaml").write_text(profile)
    there = tmp_path / "there"
    made = sim(tmp_path / "p", str(there / "mine.yaml"), board_profile=str(there / "my-board.yaml"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PackageError, match=r"^No geometry 'mine' ships, and mine\.yaml is not here; name it after"):
        again(made, "", tmp_path / "q")
    with pytest.raises(PackageError, match=r"^No board profile 'my-board' ships, and my-board\.yaml is not here\.$"):
        again(made, str(there / "mine.yaml"), tmp_path / "q")
    monkeypatch.chdir(tmp_path / "here")
    assert again(made, "", tmp_path / "q").pack.hash == open_package(made).hash


def test_replay_of_a_simulated_boards_package_from_another_geometry_is_refused(tmp_path: Path) -> None:
    made = sim(tmp_path / "p")
    with pytest.raises(PackageError, match="The geometry is not the recorded smollm2-135m: its figures differ"):
        again(made, "llama-3.2-1b", tmp_path / "q")
    source = {**record_of(made)["source"], "board_profile_sha256": "0" * 64}
    with pytest.raises(PackageError, match="The board profile is not the recorded assumed-lanes"):
        again(edited(made, tmp_path / "r.json", source=source), "", tmp_path / "q")
    tools = edited(made, tmp_path / "r.json", tools={"calserve": "0.0"})
    with pytest.raises(PackageError, match=r"calserve 0\.0, here"):
        again(tools, "", tmp_path / "q")
    assert not (tmp_path / "q").exists()


def test_replay_of_a_simulated_boards_package_names_what_came_out_differently(tmp_path: Path) -> None:
    made = sim(tmp_path / "p")
    outputs = {**record_of(made)["outputs"], "goldens.json": "0" * 64}
    report = again(edited(made, tmp_path / "r.json", outputs=outputs), "", tmp_path / "q")
    assert report.differing == ("goldens.json",)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "x" * 4000])
def test_replay_of_a_simulated_boards_record_that_names_a_way_to_a_place_is_taken_by_its_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made = sim(tmp_path / "p")
    monkeypatch.chdir(tmp_path)
    for key in ("source", "options"):
        field = "geometry" if key == "source" else "board_profile"
        record = edited(made, tmp_path / "r.json", **{key: {**record_of(made)[key], field: name}})
        with pytest.raises(PackageError, match=r"ships, and .* is not here") as caught:
            again(record, "", tmp_path / "q")
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("changes", [{"options": {"target": "sim"}}, {"extra": 1}, {"outputs": []}])
def test_replay_of_a_simulated_boards_record_with_wrong_fields_is_a_sentence(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(PackageError, match="is no record of a pack"):
        again(edited(sim(tmp_path / "p"), tmp_path / "r.json", **changes), "", tmp_path / "q")


def test_replay_of_a_combined_package_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    made = sim(tmp_path / "p")
    combine(made, made, tmp_path / "c", CombineOptions(alias_b="other"), SilentProgress())
    with pytest.raises(PackageError, match="of a combined package: replay the record of each of its two parents, and"):
        again(tmp_path / "c", "", tmp_path / "q")
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize("is_sim", [False, True])
def test_replay_of_an_older_versions_record_says_so(packed: Path, tmp_path: Path, is_sim: bool) -> None:
    record = record_of(sim(tmp_path / "p")) if is_sim else record_of(packed)
    if is_sim:
        del record["outputs"], record["options"]["weights"]
    else:
        del record["source"]["kind"], record["command"]
    (tmp_path / "r.json").write_text(json.dumps(record))
    with pytest.raises(PackageError, match="was written by an older version of calserve"):
        again(tmp_path / "r.json", "", tmp_path / "q")


# The command.


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["pack", *map(str, words)])


def test_pack_command_replays_and_says_so(packed: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    done = run("--replay", packed / RECORD, tiny_gguf, "-o", tmp_path / "q")
    assert done.exit_code == 0
    assert "every file is as recorded" in done.output
    outputs = {**record_of(packed)["outputs"], "goldens.json": "0" * 64}
    differs = run("--replay", edited(packed, tmp_path / "r.json", outputs=outputs), tiny_gguf, "-o", tmp_path / "r")
    assert differs.exit_code == 3
    assert "came out differently: goldens.json" in differs.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "pack needs a source"),
        (("--replay", "r.json", "--weights", "int8"), "--weights says nothing beside --replay"),
        (("--replay", "r.json", "--target", "sim"), "--replay says nothing beside --target sim"),
        (("x.gguf", "--geometry", "qwen3-30b-a3b"), "--geometry is for --target sim"),
        (("x.gguf", "--chips", "2"), "--chips is for --target sim"),
        (("x.gguf", "--other-tools"), "--other-tools is for --replay"),
        (("x.gguf", "--target", "sim"), "a source says nothing beside --target sim"),
        (("--target", "sim"), "--target sim needs --geometry"),
        (("--target", "sim", "--geometry", "x", "--numerics", "exact"), "--numerics says nothing beside --target sim"),
        (("--target", "sim", "--geometry", "qwen3-30b-a3b", "--weights", "given"), "gives only their size"),
        (("--target", "calrt"), "--target is openvino or sim"),
        (("x.gguf", "--profiles", "a"), "--profiles takes lane counts"),
    ],
)
def test_pack_command_refuses_flags_that_would_do_nothing(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = run(*words, "-o", tmp_path / "q")
    assert done.exit_code == 1
    assert told in done.output
    assert not (tmp_path / "q").exists()


def test_pack_command_makes_a_package_for_the_simulated_board(tmp_path: Path) -> None:
    done = run("--target", "sim", "--geometry", "smollm2-135m", "-o", tmp_path / "q", "--json")
    assert done.exit_code == 0, done.output
    assert open_package(tmp_path / "q").weights == "none"


def test_record_of_any_quantization_can_be_read_again(packed: Path, tmp_path: Path) -> None:
    from calserve.package.pack.convert import COMPRESSION
    from calserve.package.pack.provenance import read_provenance

    for settings in COMPRESSION.values():
        record = read_provenance(edited(packed, tmp_path / "r.json", quantization=settings))
        assert record.quantization == settings


def test_pack_alias_of_the_source_is_recorded(tiny_gguf: Path, tmp_path: Path) -> None:
    pack(tiny_gguf, tmp_path / "p", replace(OPTIONS, alias=""), SilentProgress())
    assert record_of(tmp_path / "p")["options"]["alias"] == "tiny"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_pack_command_told_to_end_leaves_nothing(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Without the guard the signal would be swallowed here, and the pack would end as a package."""

    def told(*_: object) -> str:
        assert list(tmp_path.glob(".p.packing-*")), "the signal comes while the package is made"
        signal.raise_signal(number)
        return "again"

    monkeypatch.setattr(sys.modules["calserve.package.pack.build"], "plain_alias", told)
    before = signal.signal(number, lambda *_: None)
    try:
        done = run(tiny_gguf, "-o", tmp_path / "p", "--context", "256", "--weights", "fp16", "--numerics", "exact")
    finally:
        signal.signal(number, before)
    assert done.exit_code == 128 + number
    assert list(tmp_path.iterdir()) == []
