"""The kinds of board a package can be compiled for, and what follows from each for its files.

Owns the names and traits of targets. Must not know boards themselves: a target may be one that nothing here can open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Target: TypeAlias = Literal["openvino", "sim", "calrt"]


@dataclass(frozen=True, slots=True)
class TargetTraits:
    """is_compiled: every graph has files. is_planned_here: this project's packer lays its address plan, so that it may
    combine packages; elsewhere only the vendor's compiler can."""

    is_compiled: bool
    is_planned_here: bool


TARGETS: Mapping[str, TargetTraits] = MappingProxyType(
    {
        "openvino": TargetTraits(is_compiled=True, is_planned_here=True),
        "sim": TargetTraits(is_compiled=False, is_planned_here=True),
        "calrt": TargetTraits(is_compiled=True, is_planned_here=False),
    }
)
