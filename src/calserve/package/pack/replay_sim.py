"""`calserve pack --replay` of a package for the simulated board, built again from its geometry.

Owns the form of such a record, and finding its geometry and board profile. Must not know how a package is made. As with
any record, a name in it is never a way to a place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from calserve.package.fault import PackageError
from calserve.package.geometry import load_geometry, shipped_geometries
from calserve.package.manifest import Record, Sha256
from calserve.package.pack.provenance import Few, Words, differing_outputs, other_tools, read_record
from calserve.package.pack.sim_target import (
    SimOptions,
    SimPackReport,
    board_profile_sha256,
    is_shipped_profile,
    pack_sim,
)
from calserve.progress import Progress

SUFFIX = ".yaml"  # of a geometry's or a profile's file, looked for under the name it has


class GeometryRecord(Record, frozen=True):
    """sha256: of its figures, as `Geometry.sha256`; board_profile_sha256 likewise. The rest is for people."""

    geometry: Words
    sha256: Sha256
    board_profile_sha256: Sha256
    figures: Any
    vocabulary: Words
    weights: Words


class SimOptionsRecord(Record, frozen=True):
    """As `calserve pack --target sim` takes them, each settled."""

    target: Literal["sim"]
    weights: Literal["int8", "int4", "fp16"]
    board_profile: Words
    chips: int
    profiles: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=64)]
    context: int
    alias: Words


class SimProvenance(Record, frozen=True):
    """outputs: sha256 of every other file."""

    command: Annotated[tuple[Words, ...], Few]
    source: GeometryRecord
    options: SimOptionsRecord
    tools: Annotated[dict[Words, Words], Few]
    outputs: Annotated[dict[Words, Sha256], Few]


def replay_sim(
    record: Path, named: str, target: Path, force: bool, is_other_tools: bool, progress: Progress
) -> tuple[SimPackReport, tuple[str, ...], tuple[str, ...]]:
    """Build the package of `record` again into `target`: its report, the files that differ, the tools that do.

    named: the geometry's name or file; empty for the recorded name, of those that ship or in the working directory.
    Raises PackageError: no record, another geometry, board profile or tools, and what packing raises; ProfileError.
    """
    recorded = read_record(record, SimProvenance)
    tools = other_tools(recorded.tools, is_other_tools)
    source, wanted = recorded.source, recorded.options
    geometry = load_geometry(named or _place("geometry", source.geometry, source.geometry in shipped_geometries()))
    profile = _place("board profile", wanted.board_profile, is_shipped_profile(wanted.board_profile))
    _check_same("geometry", source.geometry, source.sha256, geometry.sha256())
    _check_same("board profile", wanted.board_profile, source.board_profile_sha256, board_profile_sha256(profile))
    options = SimOptions(
        board_profile=profile,
        chips=wanted.chips,
        profiles=wanted.profiles,
        context=wanted.context,
        weights=wanted.weights,
        alias=wanted.alias,
        force=force,
    )
    report = pack_sim(geometry, target, options, progress)
    rebuilt = read_record(target, SimProvenance)
    return report, differing_outputs(recorded.outputs, rebuilt.outputs), tools


def _place(what: str, name: str, is_shipped: bool) -> str:
    """The name itself where it ships, else the file of that name in the working directory."""
    if is_shipped:
        return name
    file = f"{Path(name).name}{SUFFIX}"
    if not os.path.isfile(file):  # false for a name that no file can have, where Path raises
        more = "; name it after --replay FILE" if what == "geometry" else ""
        raise PackageError("replay_source", f"No {what} {name[:80]!r} ships, and {file[:90]} is not here{more}.")
    return file


def _check_same(what: str, name: str, recorded: str, found: str) -> None:
    if found != recorded:
        raise PackageError(
            "replay_source", f"The {what} is not the recorded {name[:80]}: its figures differ.", recorded, found
        )
