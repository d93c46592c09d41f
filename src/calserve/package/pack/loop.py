"""A plain infer loop over a graph: no server, no threads, one sequence.

Owns the arithmetic of feeding the paged and the stateful graph directly; goldens and agreement are computed with it,
so that they do not depend on the code they later check. Must not know packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calserve.package.fault import PackageError
from calserve.package.pack.options import UNIT_TOKENS
from calserve.package.pack.paged import CACHE_PREFIXES, Geometry, read_paged
from calserve.signal_stack import keeping_signal_stack

CUT_TOKENS, CUTS = 96, (2, 17)

Logits = np.ndarray[Any, np.dtype[np.float32]]


class PagedLoop:
    """A compiled packed graph with its own KV for one sequence of at most `context` tokens."""

    def __init__(self, graph: Path, geometry: Geometry, settings: dict[str, str], context: int) -> None:
        import openvino as ov

        with keeping_signal_stack():
            core = ov.Core()
            core.get_property("CPU", "FULL_DEVICE_NAME")
        compiled = core.compile_model(read_paged(core, graph, geometry), "CPU", settings)
        self._request = compiled.create_infer_request()
        self._blocks = -(-context // UNIT_TOKENS)
        self._caches = []
        for port in compiled.inputs:
            name = port.get_any_name()
            if name.startswith(CACHE_PREFIXES):
                inner = [port.get_partial_shape()[axis].get_length() for axis in (1, 2, 3)]
                tensor = ov.Tensor(port.get_element_type(), ov.Shape([self._blocks + 1, *inner]))
                tensor.data[...] = 0
                self._request.set_tensor(name, tensor)
                self._caches.append(tensor)

    def step(self, ids: Sequence[int], past: int, wanted: Sequence[int]) -> Logits:
        """Feed `ids` at positions past, past+1, ...; logits float32[len(wanted), vocab] at those of `ids`.

        A second row in a block of its own rides along, as the encoder does, so that a single token is never alone.
        """
        end = past + len(ids)
        blocks = -(-end // UNIT_TOKENS)
        self._set("input_ids", [*ids, 0], np.int64)
        self._set("position_ids", [*range(past, end), 0], np.int64)
        self._set("past_lens", [past, 0], np.int32)
        self._set("subsequence_begins", [0, len(ids), len(ids) + 1], np.int32)
        self._set("block_indices", [*range(blocks), self._blocks], np.int32)
        self._set("block_indices_begins", [0, blocks, blocks + 1], np.int32)
        self._set("max_context_len", end, np.int32)
        self._set("sampled_tokens_indices", list(wanted), np.int64)
        self._request.infer()
        return np.array(self._request.get_tensor("logits").data)

    def _set(self, name: str, values: Any, dtype: Any) -> None:
        import openvino as ov

        array = np.asarray(values, dtype)
        tensor = ov.Tensor(ov.Type(array.dtype), ov.Shape(list(array.shape)))
        tensor.data[...] = array
        self._request.set_tensor(name, tensor)


class StatefulLoop:
    """The converter's own graph in exact numerics: what the packed one is held against."""

    def __init__(self, graph: Path) -> None:
        import openvino as ov

        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
            "KV_CACHE_PRECISION": "f32",
        }
        with keeping_signal_stack():
            core = ov.Core()
            core.get_property("CPU", "FULL_DEVICE_NAME")
        self._request = core.compile_model(core.read_model(graph), "CPU", settings).create_infer_request()

    def logits(self, ids: Sequence[int]) -> Logits:
        """Logits float32[len(ids), vocab] of one whole pass."""
        n = len(ids)
        self._request.reset_state()
        inputs = {
            "input_ids": np.asarray([ids], np.int64),
            "attention_mask": np.ones((1, n), np.int64),
            "position_ids": np.arange(n, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer(inputs)
        return np.array(self._request.get_tensor("logits").data[0])


def check_cuts(loop: PagedLoop, ids: Sequence[int], whole: Logits) -> None:
    """Raise PackageError unless a prompt in pieces gives the very bits of the prompt as a whole.

    What numerics `exact` promises, held for this graph: an operation that works another way for few rows breaks it.
    """
    ids = ids[:CUT_TOKENS]
    for piece in CUTS:
        at = 0
        while at < len(ids):
            end = len(ids) if len(ids) - at < piece + 2 else at + piece  # a piece has two tokens or more
            if not np.array_equal(loop.step(ids[at:end], at, range(end - at)), whole[at:end]):
                raise PackageError(
                    "exact",
                    f"not supported: numerics exact for this model: its logits change when a prompt is cut into pieces "
                    f"of {piece} tokens; pack it with --numerics fast.",
                )
            at = end


def greedy(loop: PagedLoop, prompt: Sequence[int], count: int, eos: Sequence[int]) -> tuple[list[int], list[float]]:
    """Greedy continuation of at most `count` tokens, ending with an end token, and each step's lead in logits."""
    ids: list[int] = []
    margins: list[float] = []
    feed, past = list(prompt), 0
    while len(ids) < count:
        row = loop.step(feed, past, [len(feed) - 1])[0]
        second, best = np.partition(row, len(row) - 2)[-2:]
        past, feed = past + len(feed), [int(row.argmax())]
        ids.append(feed[0])
        margins.append(round(float(best - second), 4))
        if feed[0] in eos:
            break
    return ids, margins
