"""A required signature is asked for before anything else reads the package, and what it covered is what is served."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from server_rig import Start, quick_profile
from typer.testing import CliRunner

from calserve.cli.app import app
from calserve.cli.boards import BoardFlags, chosen_board
from calserve.cli.refusals import Refusal
from calserve.package import PackageError, reader
from calserve.package.geometry import load_geometry
from calserve.package.pack.sim_target import SimOptions, pack_sim
from calserve.package.signing import new_key_pair, sign_package
from calserve.progress import SilentProgress

pytest.importorskip("model_signing")


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: package, ours.key, ours.pub, theirs.pub."""
    folder = tmp_path_factory.mktemp("signed")
    pack_sim(load_geometry("smollm2-135m"), folder / "package", SimOptions(), SilentProgress())
    new_key_pair(folder / "ours.key", folder / "ours.pub")
    new_key_pair(folder / "theirs.key", folder / "theirs.pub")
    sign_package(folder / "package", folder / "ours.key")
    return folder


def rule_of(package: Path, *keys: Path) -> str:
    with pytest.raises(PackageError) as caught, chosen_board(BoardFlags(model=str(package), keys=keys)):
        pass
    return caught.value.fault.rule


def test_signature_by_a_trusted_key_lets_the_package_in(signed: Path) -> None:
    flags = BoardFlags(model=str(signed / "package"), keys=(signed / "theirs.pub", signed / "ours.pub"))
    with chosen_board(flags) as chosen:
        assert chosen.package.root == (signed / "package").resolve()


def test_signature_that_is_missing_or_by_another_keeps_it_out(signed: Path, tmp_path: Path) -> None:
    assert rule_of(signed / "package", signed / "theirs.pub") == "signature_key"
    plain = shutil.copytree(signed / "package", tmp_path / "plain")
    (plain / "signature").unlink()
    assert rule_of(plain, signed / "ours.pub") == "signature_missing"


def test_signature_is_asked_for_before_a_gate_reads_a_byte(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = shutil.copytree(signed / "package", tmp_path / "broken")
    (broken / "manifest.yaml").write_text("[" * 100_000)
    monkeypatch.setattr(reader, "inspect", lambda *_: pytest.fail("a gate ran"))
    assert rule_of(broken, signed / "ours.pub") == "signature_differs"


def test_signature_for_a_made_up_model_is_refused(signed: Path) -> None:
    flags = BoardFlags(board="sim", model="nobody", keys=(signed / "ours.pub",))
    with pytest.raises(Refusal, match="require-signature"), chosen_board(flags):
        pass


def test_package_on_a_board_is_what_it_was_when_it_was_checked(signed: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(signed / "package", tmp_path / "mine")
    with chosen_board(BoardFlags(model=str(mine))) as chosen:
        before = chosen.package.files["tokenizer"].read_bytes()
        (mine / "tokenizer.json").write_text("{}")
        shutil.rmtree(mine)
        assert chosen.package.files["tokenizer"].read_bytes() == before


@pytest.mark.slow
def test_serve_with_a_required_signature_from_the_environment(
    signed: Path, start_server: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALSERVE_REQUIRE_SIGNATURE", str(signed / "ours.pub"))
    profile = quick_profile(tmp_path / "quick.yaml", "assumed-lanes")
    server = start_server(signed / "package", "--board-profile", str(profile))
    assert httpx.get(f"{server.base}/health/ready", timeout=60).status_code == 200


def test_required_signature_of_the_environment_is_heeded_by_whatever_loads_a_package(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shutil.copytree(signed / "package", tmp_path / "plain")
    (plain / "signature").unlink()
    monkeypatch.setenv("CALSERVE_REQUIRE_SIGNATURE", str(signed / "ours.pub"))
    for command in (("run", "--golden"), ("conform", "--board", "sim", "--model"), ("validate", "--full")):
        told = CliRunner().invoke(app, [command[0], *command[1:], str(plain)])
        assert told.exit_code == 1, told.output
        assert "is not signed, and a signature is required" in told.output
    told = CliRunner().invoke(app, ["run", "--golden", str(signed / "package")])
    assert told.exit_code == 0, told.output
