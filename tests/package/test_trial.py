"""Gate F's board: which one a package may name, and what a golden run on it sees."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from drafts import lanes

from calserve.cli.boards import package_profile
from calserve.cli.trial import Trial, open_trial
from calserve.core.job import Task
from calserve.package.gates.compatibility import NoSuchProfile
from calserve.package.reader import open_package
from calserve.progress import SilentProgress
from calserve.runtime.contract import BoardPackage, InactiveLanePolicy
from calserve.runtime.openvino.graph import GraphRefused, intermediate_file
from calserve.runtime.sim import PROFILES, ProfileError, SimBoard
from calserve.runtime.sim.package import sim_package

LANES = PROFILES["assumed-lanes"]


def _with_policy(package: BoardPackage, policy: InactiveLanePolicy) -> BoardPackage:
    graphs = tuple(
        replace(graph, inactive_lane_policy=policy) if graph.profile.batch > 1 else graph for graph in package.graphs
    )
    return replace(package, graphs=graphs)


def test_goldens_run_with_unused_lanes_too_so_that_a_wrong_policy_for_them_shows() -> None:
    right = sim_package(LANES)
    assert all(
        g.inactive_lane_policy is not None
        for g in right.graphs
        if Task.DECODE in g.profile.tasks and g.profile.batch > 1
    )
    wrong = _with_policy(right, InactiveLanePolicy.OMIT)
    assert Trial(SimBoard(LANES), time.monotonic_ns, SilentProgress()).attempt(right, (0,)) is None
    found = Trial(SimBoard(LANES), time.monotonic_ns, SilentProgress()).attempt(wrong, (0,))
    assert found is not None
    assert found[0] == "warm"


def _named(tmp_path: Path, name: str) -> BoardPackage:
    draft = lanes()
    draft.model()["settings"] = {"board_profile": name}
    return open_package(draft.write(tmp_path / "p"))


def test_profile_that_a_package_names_is_never_looked_for_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text("not read")
    package = _named(tmp_path, "x.yaml")
    with pytest.raises(ProfileError, match=r"'x.yaml', which does not ship .*; --board-profile takes its file\.$"):
        package_profile(package, None)
    with pytest.raises(ProfileError, match=r"x\.yaml: schema|x\.yaml: must"):
        package_profile(package, "x.yaml")
    with pytest.raises(NoSuchProfile, match="which does not ship"), open_trial((package,), 1, SilentProgress()):
        pass


def test_profile_that_ships_is_taken_from_a_package_by_name(tmp_path: Path) -> None:
    assert package_profile(_named(tmp_path, "calculet-2chip"), None) is PROFILES["calculet-2chip"]


@pytest.mark.parametrize(
    "head",
    [
        b"garbage",
        b"\x08\x07\x12\x04onnx",
        b"<net/>",
        b'<?xml version="1.0"?><!DOCTYPE net [<!ENTITY a "b">]><net name="s" version="11">',
        b'<!-- --><net name="s" version="11">',
        b'<net name="s" version="9">',
    ],
)
def test_graph_file_in_another_format_is_not_handed_to_the_library(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "step.xml"
    path.write_bytes(head)
    with pytest.raises(GraphRefused, match=r"^step\.xml is no intermediate representation"):
        intermediate_file(path)


@pytest.mark.parametrize(
    "head", [b'<?xml version="1.0"?>\n<net name="step" version="11">\n', b'<net name="s" version="10">']
)
def test_graph_file_as_it_is_saved_is_read(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "step.xml"
    path.write_bytes(head + b"<layers>")
    assert intermediate_file(path) == path
