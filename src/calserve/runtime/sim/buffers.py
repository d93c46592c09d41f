"""Host buffers of one job: memory whose address never moves, and the codes of what is done to it.

Owns: the backing arrays, which of them are bound, sliced and set. Must not know: the device's queue, KV. Life:
allocated by a session for one graph and bank, filled by the encoder, read and written by the device's DMA
while a job holds it, given back with `undo_slices` and `reset`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calserve.core.job import Bank
from calserve.runtime.contract import Code, GraphContract, TensorContract
from calserve.runtime.errors import CalCode
from calserve.runtime.sim.faults import FaultPlan, FaultPoint

_BFLOAT16_NAN = 0x7FC0
_DTYPES = {"int32": np.int32, "float32": np.float32, "bfloat16": np.uint16}


class SimBuffers:
    """`HostBuffers` of the simulated board. bfloat16 tensors are uint16 bit patterns.

    Invariants: `is_held` from `submit` until the device retires the job; nothing but DMA should touch the
    memory then, and nothing here stops a host that does: it gets wrong output, as on hardware.
    """

    def __init__(self, contract: GraphContract, bank: Bank, owner: object, plan: FaultPlan) -> None:
        self.graph = contract.name
        self.bank = bank
        self.contract = contract
        self.owner = owner
        self.plan = plan
        self.is_held = False
        self.csrs: dict[str, int] = {}
        self._tensors: dict[str, TensorContract] = {**contract.inputs, **contract.outputs}
        self._arrays = {name: np.zeros(t.shape, _DTYPES[t.dtype]) for name, t in self._tensors.items()}
        self._poison_outputs()
        self._mapped: set[str] = set()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._short: dict[str, tuple[int, ...]] = {}

    def host(self, name: str) -> np.ndarray[Any, Any]:
        return self._arrays[name]

    def map(self, name: str) -> Code:
        if name not in self._tensors:
            return CalCode.INVALID_VALUE
        if fault := self.plan.visit(FaultPoint.MAP_FAILS):
            return fault.value or CalCode.MAP_BROKEN
        self._mapped.add(name)
        return CalCode.SUCCESS

    def slice(self, name: str, shape: tuple[int, ...]) -> Code:
        """Codes: 4 unknown name, 27 not sliceable, 22 wrong rank, 14 beyond the compiled shape."""
        tensor = self._tensors.get(name)
        if tensor is None:
            return CalCode.INVALID_VALUE
        if not tensor.sliceable:
            return CalCode.NOT_SUPPORTED
        if len(shape) != len(tensor.shape):
            return CalCode.SHAPE_MISMATCH
        if any(not 1 <= n <= most for n, most in zip(shape, tensor.shape, strict=True)):
            return CalCode.OUT_OF_RANGE
        if fault := self.plan.visit(FaultPoint.SLICE_FAILS):
            return fault.value or CalCode.SHAPE_MISMATCH
        self._shapes[name] = shape
        return CalCode.SUCCESS

    def set_csr(self, name: str, value: int) -> Code:
        """Codes: 4 unknown name, 14 outside 0 .. the graph's longest sequence."""
        if name not in self.contract.csr_names:
            return CalCode.INVALID_VALUE
        if not 0 <= value <= self.contract.profile.max_tokens:
            return CalCode.OUT_OF_RANGE
        if fault := self.plan.visit(FaultPoint.CSR_FAILS):
            return fault.value or CalCode.INVALID_VALUE
        self.csrs[name] = value
        return CalCode.SUCCESS

    def undo_slices(self) -> Code:
        if self._shapes and self.plan.visit(FaultPoint.UNDO_LOST):
            return CalCode.SUCCESS
        self._shapes.clear()
        return CalCode.SUCCESS

    def reset(self) -> Code:
        """Codes: 17 while a job holds the memory, 4 while a slice is outstanding (seed 003, FI15)."""
        if self.is_held:
            return CalCode.DEVICE_BUSY
        if self._shapes:
            return CalCode.INVALID_VALUE
        if fault := self.plan.visit(FaultPoint.BUFFER_RESET_FAILS):
            return fault.value or CalCode.INVALID_VALUE
        self._mapped.clear()
        self._short.clear()
        self.csrs.clear()
        for name in self.contract.inputs:
            self._arrays[name].fill(0)
        self._poison_outputs()
        return CalCode.SUCCESS

    def output(self, name: str) -> np.ndarray[Any, Any]:
        """A view; shorter than the contract's shape where the device returned less."""
        shape = self._short.get(name, self.contract.outputs[name].shape)
        return self._arrays[name][tuple(slice(n) for n in shape)]

    def _poison_outputs(self) -> None:
        for name in self.contract.outputs:
            array = self._arrays[name]
            array.fill(_BFLOAT16_NAN if array.dtype == np.uint16 else np.nan)

    @property
    def is_bound(self) -> bool:
        """Whether every tensor is mapped and every CSR set: what `submit` asks for."""
        return len(self._mapped) == len(self._tensors) and len(self.csrs) == len(self.contract.csr_names)

    @property
    def input_bytes(self) -> int:
        """What H2D moves: every input at its sliced shape."""
        sizes = self._shapes
        return sum(
            self._arrays[name].itemsize * int(np.prod(sizes[name])) if name in sizes else tensor.byte_size
            for name, tensor in self.contract.inputs.items()
        )

    @property
    def output_bytes(self) -> int:
        return sum(tensor.byte_size for tensor in self.contract.outputs.values())

    def dma_read(self) -> dict[str, np.ndarray[Any, Any]]:
        """Views of the host memory at its sliced shapes, for the device to take in at this moment."""
        read = {}
        for name in self.contract.inputs:
            array, shape = self._arrays[name], self._shapes.get(name)
            read[name] = array if shape is None else _packed(array, shape)
        return read

    def dma_write(self, name: str, values: np.ndarray[Any, Any], shape: tuple[int, ...]) -> None:
        """The device writes the leading `shape` of `values` into the host memory of `name`."""
        part = tuple(slice(n) for n in shape)
        self._arrays[name][part] = values[part]
        if shape != self.contract.outputs[name].shape:
            self._short[name] = shape


def _packed(array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The leading elements of the memory, seen at the sliced shape."""
    return array.reshape(-1)[: int(np.prod(shape))].reshape(shape)
