"""Memory of one job: backing arrays whose address never moves, and the infer request bound to them.

Owns: one infer request, its input and output tensors, and their shapes. Must not know: jobs' contents. Life:
made by `Session.allocate`, filled by the encoder, owned by the device from `start` until `finished`, read
through `output`, scrubbed by `reset`, and dead (every operation refused) once its session is gone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calserve.core.job import Bank
from calserve.runtime.contract import Code, GraphContract
from calserve.runtime.errors import CalCode

# One NaN in each page of logits: whatever part of a row a job leaves unwritten, the row cannot be read as a result.
# Writing all of it would cost 0.1-0.4 ms of every step.
POISON_STRIDE = 1024


class StepBuffers:
    """`HostBuffers` of the board.

    Invariants: while the device owns the memory, map, slice and reset are refused (17); a shape is a leading
    part of the compiled one. The tensors see a new shape only at `start`, so a step like the last one costs
    nothing.
    """

    def __init__(self, contract: GraphContract, bank: Bank, request: Any, logits_rank: int) -> None:
        self.graph = contract.name
        self.bank = bank
        self.request = request
        self.in_flight = False
        self.broken = False
        self._contract = contract
        self._logits_rank = logits_rank
        self._full = {t.name: t.shape for t in (*contract.inputs.values(), *contract.outputs.values())}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {
            tensor.name: np.full(tensor.shape, np.nan if tensor.name in contract.outputs else 0, tensor.dtype)
            for tensor in (*contract.inputs.values(), *contract.outputs.values())
        }
        self._tensors = {name: self._bind(name) for name in self._full}
        self._applied = dict(self._full)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._sliced: set[str] = set()
        self._used_logits = 0
        # Leading elements the last job was given, for tensors that were sliced; of any other all may be written.
        self._extents: dict[str, int] = {}

    def _bind(self, name: str) -> Any:
        import openvino as ov

        array = self._arrays[name]
        if name in self._contract.outputs:
            array = array.reshape(self._device_shape(name, array.shape))
        tensor = ov.Tensor(array, shared_memory=True)
        self.request.set_tensor(name, tensor)
        return tensor

    def _device_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        middle = self._logits_rank == 3 and name in self._contract.outputs
        return (shape[0], 1, shape[1]) if middle else shape

    def host(self, name: str) -> np.ndarray[Any, Any]:
        """The whole backing array of `name`."""
        return self._arrays[name]

    def map(self, name: str) -> Code:
        """Take part in the next job at the full shape. 4: no such tensor; 17: the device owns the memory."""
        full = self._full.get(name)
        if full is None:
            return int(CalCode.INVALID_VALUE)
        if code := self._refusal():
            return code
        self._shapes[name] = full
        return 0

    def slice(self, name: str, shape: tuple[int, ...]) -> Code:
        """Only the leading `shape`. 4: no such tensor, or unmapped; 14: beyond the memory; 22: no shape of it;
        27: a tensor that cannot be sliced."""
        full = self._full.get(name)
        if full is None or name not in self._shapes:
            return int(CalCode.INVALID_VALUE)
        if code := self._refusal():
            return code
        if not full:
            return int(CalCode.NOT_SUPPORTED)
        if len(shape) != len(full) or shape[1:] != full[1:]:
            return int(CalCode.SHAPE_MISMATCH)
        if not 1 <= shape[0] <= full[0]:
            return int(CalCode.OUT_OF_RANGE)
        self._shapes[name] = shape
        self._sliced.add(name)
        return 0

    def set_csr(self, name: str, value: int) -> Code:
        """The step graph has no registers, so no name is known (4)."""
        return int(CalCode.INVALID_VALUE)

    def undo_slices(self) -> Code:
        if code := self._refusal():
            return code
        for name in self._sliced:
            self._extents[name] = max(self._extents.get(name, 0), self._shapes[name][0])
            self._shapes[name] = self._full[name]
        self._sliced.clear()
        return 0

    def reset(self) -> Code:
        """Unmap everything, zero the inputs, poison the logits that the last job left.

        4: a slice was not undone (seed 003, FI15); 17: in flight; 24: a job died in this memory.
        """
        if code := self._refusal():
            return code
        if self._sliced:
            return int(CalCode.INVALID_VALUE)
        self._shapes.clear()
        for name in self._contract.inputs:
            array = self._arrays[name]
            (array[: self._extents[name]] if name in self._extents else array).fill(0)
        self._extents.clear()
        used = self._arrays["logits"][: self._used_logits]
        used[:, ::POISON_STRIDE] = used[:, -1:] = np.nan
        self._used_logits = 0
        return 0

    def output(self, name: str) -> np.ndarray[Any, Any]:
        """Leading rows of an output: float32[rows, vocab]."""
        return self._arrays[name][: self._shapes.get(name, self._full[name])[0]]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes the next job would run with; a tensor that is not mapped is missing."""
        return self._shapes

    def start(self) -> None:
        """Hand the memory to the device and start; returns at once. Raises what OpenVINO raises."""
        for name, shape in self._shapes.items():
            if self._applied[name] != shape:
                self._tensors[name].shape = self._device_shape(name, shape)
                self._applied[name] = shape
        self._used_logits = max(self._used_logits, self._shapes["logits"][0])
        self.in_flight = True
        try:
            self.request.start_async()
        except BaseException:
            self.in_flight = False
            raise

    def finished(self, broken: bool) -> None:
        """The device gave the memory back."""
        self.in_flight = False
        self.broken = self.broken or broken

    def retire(self) -> None:
        """The session is gone: let go of the request and refuse everything. The host memory stays."""
        self.broken = True
        self.request = None
        self._tensors = {}

    def _refusal(self) -> Code:
        if self.in_flight:
            return int(CalCode.DEVICE_BUSY)
        return int(CalCode.MAP_BROKEN) if self.broken else 0
