"""The stateful graph into the paged one, and back from disk.

The only file that touches OpenVINO's private `_offline_transformations`; `tests/package/test_paged.py` holds the
pinned version to what is needed of it. Must not know weights or files of a package.

The packed graph is already paged, so serving only reads and compiles it, with three things to know:
- PagedAttentionExtension is known to `read_model` only after the CPU plug-in is loaded;
- the heads' geometry the plug-in wants stands in runtime info, which is not serialized: `read_paged` restores it;
- the cache inputs must keep a dynamic element type and be typed by `KV_CACHE_PRECISION`. Declared as float16 in
  the graph, a float32 compile puts a conversion in front of the attention, which then writes to a copy: every token
  after the first chunk reads an empty cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calserve.package.fault import PackageError

ATTENTION = "PagedAttentionExtension"
CACHE_PREFIXES = ("key_cache.", "value_cache.")
SAMPLED = "sampled_tokens_indices"
LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Geometry:
    """Attention as the graph has it: layers, and per layer the KV heads and their width."""

    n_layers: int
    n_kv_heads: int
    head_dim: int


def to_paged(model: Any, exact: bool) -> Geometry:
    """Turn a stateful decoder into the paged graph `runtime.encoding` fills, in place.

    Flat int64[T] tokens, block tables, `key_cache.i`/`value_cache.i`, and the positions whose logits are wanted;
    logits float32[L, vocab]. exact: the last product never has one row alone, because one row takes another
    numeric path than two.
    """
    from openvino._offline_transformations import paged_attention_transformation

    paged_attention_transformation(model)
    geometry = _geometry(model)
    _gather_before_logits(model, exact)
    model.validate_nodes_and_infer_types()
    return geometry


def read_paged(core: Any, path: Path, geometry: Geometry) -> Any:
    """Read a packed graph so that it compiles on the CPU plug-in."""
    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plug-in and with it the attention operation
    model = core.read_model(path)
    for node in _attention(model):
        info = node.get_rt_info()
        for side in ("k", "v"):
            info[f"num_{side}_heads"] = geometry.n_kv_heads
            info[f"{side}_head_size"] = geometry.head_dim
    return model


def _attention(model: Any) -> list[Any]:
    return [node for node in model.get_ops() if node.get_type_name() == ATTENTION]


def _geometry(model: Any) -> Geometry:
    nodes = _attention(model)
    shapes = set()
    for node in nodes:
        info = node.get_rt_info()
        numbers = [int(info[f"{name}"].astype(int)) for name in ("num_k_heads", "k_head_size")]
        values = [int(info[f"{name}"].astype(int)) for name in ("num_v_heads", "v_head_size")]
        shapes.add((*numbers, *values))
    if len(shapes) != 1:
        raise PackageError("attention", "The graph has no attention that can be paged, or layers that differ.")
    k_heads, k_size, v_heads, v_size = shapes.pop()
    if (k_heads, k_size) != (v_heads, v_size):
        raise PackageError("attention", "Keys and values of the graph differ in shape, which cannot be packed.")
    return Geometry(len(nodes), k_heads, k_size)


def _gather_before_logits(model: Any, exact: bool) -> None:
    """Compute logits only where they are wanted: prompt tokens otherwise pay for the whole vocabulary."""
    from openvino import opset13 as ops

    result = next(r for r in model.get_results() if LOGITS in r.output(0).get_names() or _feeds_logits(r))
    product = result.input(0).get_source_output().get_node()
    if product.get_type_name() != "MatMul":
        raise PackageError("logits", f"The graph's logits come from {product.get_type_name()}, not a product.")
    sampled = ops.parameter([-1], np.int64, name=SAMPLED)
    sampled.output(0).set_names({SAMPLED})
    axis = ops.constant(np.int64(0))
    wanted = sampled
    if exact:
        first = ops.slice(sampled, ops.constant([0]), ops.constant([1]), ops.constant([1]))
        wanted = ops.concat([sampled, first], 0)
    hidden = product.input(0).get_source_output()
    product.input(0).replace_source_output(ops.gather(hidden, wanted, axis).output(0))
    logits = ops.squeeze(product.output(0), ops.constant(np.int64(1)))
    if exact:
        logits = ops.slice(logits, ops.constant([0]), ops.constant([-1]), ops.constant([1]), ops.constant([0]))
    for output in product.outputs():
        output.set_names(set())
    logits.output(0).set_names({LOGITS})
    result.input(0).replace_source_output(logits.output(0))
    model.add_parameters([sampled])


def _feeds_logits(result: Any) -> bool:
    return LOGITS in result.input(0).get_source_output().get_names()
