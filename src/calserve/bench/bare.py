"""A bare loop over the package's IR: nothing of calserve between the numbers and the library.

The floor the raw loop is held against (within 5 %): compile with the package's settings, own the KV tensors,
set seven inputs, infer, argmax.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from calserve.bench.workload import Run, Work
from calserve.package.pack.paged import Geometry, read_paged
from calserve.runtime.contract import BoardPackage
from calserve.signal_stack import keeping_signal_stack


class BareLoop:
    """One compiled model, one request, block tables by position."""

    def __init__(self, package: BoardPackage) -> None:
        import openvino as ov

        self._ov = ov
        self._block = int(package.kv["unit_tokens"])
        self._per_lane = -(-package.context // self._block)
        blocks = package.max_lanes * self._per_lane
        with keeping_signal_stack():
            core = ov.Core()
            core.get_property("CPU", "FULL_DEVICE_NAME")
        geometry = Geometry(*(int(package.kv[key]) for key in ("n_layers", "n_kv_heads", "head_dim")))
        model = read_paged(core, package.files["graph:step"], geometry)
        compiled = core.compile_model(model, "CPU", dict(package.settings))
        self._request = compiled.create_infer_request()
        for port in compiled.inputs:
            name = port.any_name
            if "cache" in name:
                shape = [blocks, *(d.get_length() for d in list(port.partial_shape)[1:])]
                self._request.set_tensor(name, ov.Tensor(port.element_type, ov.Shape(shape)))

    def run(self, work: Work) -> Run:
        """The same work as the raw loop, the same two kinds of step."""
        began = time.perf_counter()
        lanes, length = len(work.prompts), len(work.prompts[0])
        flat = np.array(work.prompts, np.int64).reshape(-1)
        tokens = self._step(flat, lanes, 0, length)
        for step in range(1, work.new_tokens):
            tokens = self._step(tokens.astype(np.int64), lanes, length + step - 1, 1)
        return Run(lanes * work.new_tokens, time.perf_counter() - began)

    def _step(self, ids: Any, lanes: int, first: int, count: int) -> Any:
        used = -(-(first + count) // self._block)
        blocks = (np.arange(lanes)[:, None] * self._per_lane + np.arange(used)).astype(np.int32).reshape(-1)
        inputs = {
            "input_ids": ids,
            "position_ids": np.tile(np.arange(first, first + count, dtype=np.int64), lanes),
            "past_lens": np.full(lanes, first, np.int32),
            "subsequence_begins": np.arange(0, lanes * count + 1, count, dtype=np.int32),
            "block_indices": blocks,
            "block_indices_begins": np.arange(0, lanes * used + 1, used, dtype=np.int32),
            "max_context_len": np.array(first + count, np.int32),
            "sampled_tokens_indices": np.arange(count - 1, lanes * count, count, dtype=np.int64),
        }
        for name, value in inputs.items():
            self._request.set_tensor(name, self._ov.Tensor(value, value.shape))
        self._request.infer()
        return self._request.get_tensor("logits").data.argmax(axis=-1)
