"""The record of a pack, and packing again from it: the same bytes, or which file is not and why."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calserve.cli.app import app
from calserve.package import PackageError, open_package
from calserve.package.pack import PackOptions, pack, replay
from calserve.progress import SilentProgress
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


def test_replay_record_that_names_a_way_to_a_place_is_taken_by_its_last_part(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {**record_of(packed)["source"], "name": "../../etc/passwd"}
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
