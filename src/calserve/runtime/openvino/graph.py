"""From a package's files to a compiled step graph and its contract.

Owns: reading the IR, what serialization loses of it, compiling with every numeric hint explicit, and the
limits the contract states. Must not know: jobs, memory. The IR is the paged-attention form (one flat row of
tokens, block tables, caches as inputs) with a Gather of sampled rows before the last MatMul; anything else is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import Task
from calserve.runtime.contract import (
    BoardPackage,
    GraphContract,
    InactiveLanePolicy,
    KvLayout,
    TensorContract,
)
from calserve.runtime.openvino.kv import KvTensor

GRAPH_NAME = "step"
# A document type, and entities in it, would stand before the root, which begins at once.
_HEAD_BYTES = 1024
_IR_HEAD = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:<\?xml[ \t\r\n][^<>?]{0,200}\?>)?[ \t\r\n]{0,200}"
    rb"<net[ \t\r\n][^<>]{0,500}version=[\"']1[01][\"'][^<>]{0,200}>"
)

REQUIRED_SETTINGS = ("INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE", "KV_CACHE_PRECISION")
# What makes a row's bits independent of its mates and of how its prompt was cut; measured, see the board suite.
EXACT_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "INFERENCE_PRECISION_HINT": ("f32",),
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": ("0",),
    "KV_CACHE_PRECISION": ("f16", "f32"),
}
# A package may set numbers and nothing else: no cache folders, no extensions, no threads.
ALLOWED_SETTINGS = frozenset(
    (
        *REQUIRED_SETTINGS,
        "EXECUTION_MODE_HINT",
        "PERFORMANCE_HINT",
        "KEY_CACHE_PRECISION",
        "VALUE_CACHE_PRECISION",
        "KEY_CACHE_GROUP_SIZE",
        "VALUE_CACHE_GROUP_SIZE",
        "ACTIVATIONS_SCALE_FACTOR",
    )
)

# Rows of logits in one job where the package states none; a longer teacher-forced job is cut by its caller.
_LOGITS_ROWS = 64

_INT64 = ("input_ids", "position_ids", "sampled_tokens_indices")
_INT32 = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins", "max_context_len")


class GraphRefused(Exception):
    """The graph is readable but not one this board can run. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """logits_rank: 2 for [rows, vocab], 3 for [rows, 1, vocab]."""

    model: Any
    caches: tuple[KvTensor, ...]
    unit_tokens: int
    vocab_size: int
    logits_rank: int


def settings_complaint(package: BoardPackage) -> str:
    """What is wrong with the package's numeric hints; empty when nothing is."""
    missing = [key for key in REQUIRED_SETTINGS if key not in package.settings]
    surplus = sorted(set(package.settings) - ALLOWED_SETTINGS)
    if missing or surplus:
        return f"settings missing {missing}, not allowed {surplus}"
    inexact = [key for key, values in EXACT_SETTINGS.items() if package.settings[key] not in values]
    if package.numerics == "exact" and inexact:
        return f"numerics 'exact' with inexact settings {inexact}"
    return ""


def graph_file(package: BoardPackage) -> Path:
    """The one IR among the package's files."""
    graphs = [path for path in package.files.values() if path.suffix == ".xml"]
    if len(graphs) != 1:
        raise GraphRefused(f"one graph file is needed, the package has {len(graphs)}")
    return graphs[0]


def compile_step(core: Any, device: str, package: BoardPackage, placement: Mapping[str, str]) -> CompiledStep:
    """Read and compile; seconds. Raises GraphRefused or whatever OpenVINO raises.

    placement: settings of the chip (threads, pinning); the numeric ones come from the package alone.
    """
    # The plug-in brings the reader of the paged attention operation with it, so it is loaded first.
    core.get_property(device, "FULL_DEVICE_NAME")
    model = core.read_model(str(intermediate_file(graph_file(package))))
    _restore_attention_heads(model, package)
    compiled = core.compile_model(model, device, {**placement, **package.settings})
    return _describe(compiled, package)


def intermediate_file(path: Path) -> Path:
    """The library tries its readers of other formats, one after another, on a file that is not in its own."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not _IR_HEAD.match(head):
        raise GraphRefused(f"{path.name} is no intermediate representation of version 10 or 11")
    return path


def _restore_attention_heads(model: Any, package: BoardPackage) -> None:
    """The plug-in needs the head counts as run-time information, which an IR file does not keep."""
    heads, size = int(package.kv["n_kv_heads"]), int(package.kv["head_dim"])
    found = 0
    for node in model.get_ops():
        if node.get_type_name() == "PagedAttentionExtension":
            information = node.get_rt_info()
            information["num_k_heads"] = information["num_v_heads"] = heads
            information["k_head_size"] = information["v_head_size"] = size
            found += 1
    if found != int(package.kv["n_layers"]):
        raise GraphRefused(f"{found} paged attention layers, the package says {package.kv['n_layers']}")


def _describe(compiled: Any, package: BoardPackage) -> CompiledStep:
    inputs = {port.get_any_name(): port for port in compiled.inputs}
    caches = tuple(
        _cache(name, port) for name, port in inputs.items() if name.startswith(("key_cache.", "value_cache."))
    )
    plain = set(inputs) - {cache.name for cache in caches}
    if plain != {*_INT64, *_INT32}:
        raise GraphRefused(f"inputs differ from the contract: {sorted(plain ^ {*_INT64, *_INT32})}")
    if len(caches) != 2 * int(package.kv["n_layers"]):
        raise GraphRefused(f"{len(caches)} cache tensors for {package.kv['n_layers']} layers")
    # A quantized key cache keeps scales along the token axis; the value cache shows the block's true size.
    unit_tokens = {cache.block_shape[1] for cache in caches if cache.name.startswith("value_cache.")}
    if unit_tokens != {int(package.kv["unit_tokens"])}:
        raise GraphRefused(f"blocks of {sorted(unit_tokens)} tokens, the package says {package.kv['unit_tokens']}")
    if len(compiled.outputs) != 1:
        raise GraphRefused(f"one output is needed, the graph has {len(compiled.outputs)}")
    logits = compiled.outputs[0].get_partial_shape()
    rank, vocab = logits.rank.get_length(), logits[-1].get_length() if logits[-1].is_static else 0
    if rank not in (2, 3) or vocab != package.vocab_size:
        raise GraphRefused(f"logits {logits}, the package says a vocabulary of {package.vocab_size}")
    return CompiledStep(compiled, caches, unit_tokens.pop(), vocab, rank)


def _cache(name: str, port: Any) -> KvTensor:
    shape = port.get_partial_shape()
    if not all(dimension.is_static for dimension in list(shape)[1:]):
        raise GraphRefused(f"{name} has no fixed block layout: {shape}")
    block = tuple(dimension.get_length() for dimension in list(shape)[1:])
    element = port.get_element_type()
    count = 1
    for length in block:
        count *= length
    return KvTensor(name, block, element, count * element.bitwidth // 8)


def contract_of(step: CompiledStep, package: BoardPackage, lanes: int, kv_units: int) -> GraphContract:
    """The step graph's contract for `lanes` lanes over `kv_units` units (the scratch unit follows them)."""
    profile, min_flat_tokens = _profile(package, lanes)
    context, job_tokens = profile.max_tokens, profile.max_job_tokens
    rows, blocks = lanes + 1, lanes * -(-context // step.unit_tokens) + 1
    stated = package.graphs[0].outputs["logits"].shape[0] if package.graphs else _LOGITS_ROWS
    logits_rows = max(lanes, min(job_tokens, stated))
    lengths = {
        "input_ids": job_tokens + 1,
        "position_ids": job_tokens + 1,
        "sampled_tokens_indices": logits_rows,
        "past_lens": rows,
        "subsequence_begins": rows + 1,
        "block_indices": blocks,
        "block_indices_begins": rows + 1,
    }
    inputs = {name: _tensor(name, (n,), "int64" if name in _INT64 else "int32") for name, n in lengths.items()}
    inputs["max_context_len"] = TensorContract("max_context_len", (), "int32", 4, sliceable=False)
    return GraphContract(
        profile=profile,
        kv_layout=KvLayout.PAGED,
        inputs=inputs,
        outputs={"logits": _tensor("logits", (logits_rows, step.vocab_size), "float32")},
        csr_names=(),
        inactive_lane_policy=InactiveLanePolicy.OMIT,
        vocab_size=step.vocab_size,
        min_flat_tokens=min_flat_tokens,
        scratch_units=(kv_units,),
    )


def _profile(package: BoardPackage, lanes: int) -> tuple[GraphProfile, int]:
    """Limits of the step graph and its `min_flat_tokens`: the package's own, or those its numerics ask for."""
    # One flat token alone takes another numeric path, and so does a row of one among prefill rows.
    least = 2 if package.numerics == "exact" else 1
    if not package.graphs:
        profile = GraphProfile(
            name=GRAPH_NAME,
            tasks=frozenset((Task.PREFILL, Task.DECODE, Task.MIXED)),
            batch=lanes,
            batch_is_fixed=False,
            row_binding=RowBinding.FREE,
            max_tokens=package.context,
            max_row_tokens=package.context,
            max_job_tokens=package.context + lanes,
            min_chunk_tokens=least,
        )
        return profile, least
    given = package.graphs[0]
    if len(package.graphs) != 1 or given.kv_layout is not KvLayout.PAGED or given.profile.batch_is_fixed:
        raise GraphRefused("the package must have one paged graph that takes any number of rows")
    if given.profile.max_tokens != package.context or given.profile.batch < lanes:
        raise GraphRefused(f"graph of {given.profile.max_tokens} tokens, package of {package.context}")
    if min(given.min_flat_tokens, given.profile.min_chunk_tokens) < least:
        raise GraphRefused(f"numerics '{package.numerics}' need min_flat and min_chunk of {least} tokens")
    return replace(given.profile, batch=lanes), given.min_flat_tokens


def _tensor(name: str, shape: tuple[int, ...], dtype: str) -> TensorContract:
    size = 8 if dtype == "int64" else 4
    for length in shape:
        size *= length
    return TensorContract(name, shape, dtype, size, sliceable=True)
