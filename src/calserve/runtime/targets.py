"""The kinds of board a package can be compiled for, and what follows from each for its files.

Owns the names and traits of targets. Must not know boards themselves: a target may be one that nothing here can open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Literal, TypeAlias

# The runtime that the simulated board stands for; it comes with us and is never installed.
SIMULATED, SIMULATED_VERSION = "sim", "0.7.6"

Target: TypeAlias = Literal["openvino", "sim", "calrt"]


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """is_compiled: every graph has files. is_planned_here: this project's packer lays its address plan, so that it may
    combine packages; elsewhere only the vendor's compiler can. library: what a package's runtime range is about,
    as a distribution's name."""

    is_compiled: bool
    is_planned_here: bool
    library: str


TARGETS: Mapping[str, TargetTraits] = MappingProxyType(
    {
        "openvino": TargetTraits(is_compiled=True, is_planned_here=True, library="openvino"),
        "sim": TargetTraits(is_compiled=False, is_planned_here=True, library=SIMULATED),
        "calrt": TargetTraits(is_compiled=True, is_planned_here=False, library="calrt"),
    }
)


def runtime_version(target: str) -> str | None:
    """The version of the target's runtime library that is installed here, None where it is not."""
    library = TARGETS[target].library
    if library == SIMULATED:
        return SIMULATED_VERSION
    try:
        return version(library)
    except PackageNotFoundError:
        return None
