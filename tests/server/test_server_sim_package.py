"""A package on disk for the simulated board: which board it gets, on which chips, and that it is served."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from server_rig import Start, quick_profile

from calserve.cli.boards import BoardFlags, chosen_board
from calserve.cli.refusals import Refusal
from calserve.package.combine import CombineOptions, combine
from calserve.package.fault import PackageError
from calserve.package.geometry import load_geometry
from calserve.package.pack.sim_target import SimOptions, pack_sim
from calserve.progress import SilentProgress
from calserve.runtime.sim import ProfileError, SimBoard
from calserve.runtime.sim.oracle import greedy_tokens

EOS = (0xF5, 0xC0)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    for name in ("smollm2-135m", "qwen3-30b-a3b"):
        pack_sim(load_geometry(name), folder / name, SimOptions(), SilentProgress())
    return folder


def test_sim_package_gets_the_board_it_was_compiled_for(packages: Path) -> None:
    with chosen_board(BoardFlags(model=str(packages / "smollm2-135m"))) as chosen:
        assert chosen.about == "board sim (simulated, profile assumed-lanes)"
        assert chosen.sessions == {"chip0": (0,)}
        with_board = chosen.open()
        assert isinstance(with_board, SimBoard)
        with_board.close()
    with chosen_board(BoardFlags(board="sim", model=str(packages / "qwen3-30b-a3b"))) as chosen:
        assert chosen.about == "board sim (simulated, profile calculet-2chip)"
        assert chosen.sessions == {"chips": (0, 1)}


def test_sim_package_gets_a_copy_on_each_chip_that_is_asked_for(packages: Path) -> None:
    with chosen_board(BoardFlags(model=str(packages / "smollm2-135m"), chips=2)) as chosen:
        assert chosen.sessions == {"chip0": (0,), "chip1": (1,)}


def test_name_that_is_no_package_is_still_a_made_up_model(tmp_path: Path) -> None:
    with chosen_board(BoardFlags(board="sim", model=str(tmp_path))) as chosen:
        assert chosen.package.model == str(tmp_path)


@pytest.mark.parametrize(
    ("model", "flags", "words"),
    [
        ("smollm2-135m", {"board": "openvino"}, "is a package for board sim, not openvino"),
        ("smollm2-135m", {"profile": "calculet-2chip"}, "is compiled for 1 chips"),
        ("qwen3-30b-a3b", {"profile": "calculet-2chip", "chips": 1}, "spans 2 chips"),
        ("smollm2-135m", {"chips": 3}, "more than board profile assumed-lanes has"),
    ],
)
def test_sim_package_on_a_board_it_cannot_have_is_refused(
    packages: Path, model: str, flags: dict[str, object], words: str
) -> None:
    with pytest.raises(Refusal, match=words), chosen_board(BoardFlags(model=str(packages / model), **flags)):  # type: ignore[arg-type]
        pass


def test_copies_beyond_the_boards_calbins_are_refused(packages: Path, tmp_path: Path) -> None:
    one = quick_profile(tmp_path / "one.yaml", "assumed-lanes", calbins_per_board=1)
    flags = BoardFlags(model=str(packages / "smollm2-135m"), profile=str(one), chips=2)
    with pytest.raises(Refusal, match="holds 1"), chosen_board(flags):
        pass


def test_sim_package_for_a_board_file_that_is_gone_says_so(packages: Path) -> None:
    flags = BoardFlags(model=str(packages / "smollm2-135m"), profile="gone")
    with pytest.raises(ProfileError, match="no board profile"), chosen_board(flags):
        pass


def test_combined_package_is_not_served_as_one_model(packages: Path, tmp_path: Path) -> None:
    model = packages / "smollm2-135m"
    combine(model, model, tmp_path / "both", CombineOptions(alias_b="other"), SilentProgress())
    with pytest.raises(PackageError, match="holds 2 models"), chosen_board(BoardFlags(model=str(tmp_path / "both"))):
        pass


@pytest.mark.slow
def test_served_sim_package_answers_with_its_own_oracles_text(
    start_server: Start, packages: Path, tmp_path: Path
) -> None:
    profile = quick_profile(tmp_path / "quick.yaml", "assumed-lanes")
    server = start_server(packages / "smollm2-135m", "--board-profile", str(profile))
    body = {"model": "smollm2-135m", "prompt": [87, 97, 116], "max_tokens": 12, "temperature": 0}
    answer = httpx.post(f"{server.base}/v1/completions", json=body, timeout=60).json()
    tokens = greedy_tokens([87, 97, 116], 12, 256, "smollm2-135m", EOS)
    control = {0xC0, 0xC1, *range(0xF5, 0x100)}
    assert answer["choices"][0]["text"] == bytes(t for t in tokens if t not in control).decode("utf-8", "replace")
