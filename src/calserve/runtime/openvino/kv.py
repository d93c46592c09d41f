"""KV of one session: the tensors the graph writes, and the device's view of who holds which unit.

Owns: memory of the KV pool and the unit ledger that can say no. Must not know: requests; `core`'s ledger
decides, this one only agrees or refuses. Life: made at configure, dropped at close or reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calserve.runtime.contract import Code
from calserve.runtime.errors import CalCode


@dataclass(frozen=True, slots=True)
class KvTensor:
    """Shape of one cache tensor after its first axis (blocks), and its OpenVINO element type."""

    name: str
    block_shape: tuple[int, ...]
    element: Any
    block_bytes: int


class KvPool:
    """`units` allocatable blocks and one scratch block after them, in every cache tensor.

    Pages are taken from the system when first written, so a pool costs what it holds.
    """

    def __init__(self, tensors: tuple[KvTensor, ...], units: int) -> None:
        import openvino as ov

        self.total_units = units + 1
        self.byte_size = sum(tensor.block_bytes for tensor in tensors) * self.total_units
        self._memory = {t.name: np.zeros(t.block_bytes * self.total_units, np.uint8) for t in tensors}
        self.tensors: Mapping[str, Any] = {
            t.name: ov.Tensor(self._memory[t.name], ov.Shape([self.total_units, *t.block_shape]), t.element)
            for t in tensors
        }


class LaneUnits:
    """`KvMirror` of the board.

    Invariants: a unit has at most one lane; a lane's length fits its units. One thread calls it.
    """

    def __init__(self, lanes: int, units: int, unit_tokens: int) -> None:
        self._lanes, self._units, self._unit_tokens = lanes, units, unit_tokens
        self._held: dict[int, tuple[int, ...]] = {}
        self._holder: dict[int, int] = {}

    def can_allocate(self, units: int) -> bool:
        """True while at least `units` units are free."""
        return 0 <= units <= self._units - len(self._holder)

    def apply(self, lane: int, units: tuple[int, ...], length: int) -> Code:
        """`lane` now holds exactly `units`. 14: out of range or too few; 1: a unit is not free."""
        if not 0 <= lane < self._lanes or not 0 <= length <= len(units) * self._unit_tokens:
            return int(CalCode.OUT_OF_RANGE)
        held = self._held.get(lane, ())
        if held == units:
            return 0
        if len(set(units)) != len(units) or any(not 0 <= unit < self._units for unit in units):
            return int(CalCode.OUT_OF_RANGE)
        if any(self._holder.get(unit, lane) != lane for unit in units):
            return int(CalCode.MEMORY_ALLOCATION)
        for unit in held:
            del self._holder[unit]
        self._holder.update(dict.fromkeys(units, lane))
        self._held[lane] = units
        return 0

    def release(self, lane: int) -> Code:
        """Free the lane's units; a lane that holds none is already released."""
        if not 0 <= lane < self._lanes:
            return int(CalCode.OUT_OF_RANGE)
        for unit in self._held.pop(lane, ()):
            del self._holder[unit]
        return 0
