"""A simulated package, in memory: the graph contracts a profile promises, and goldens from the oracle.

Owns: how a `SimProfile` becomes a `BoardPackage`. Must not know: sessions, jobs. The hash covers everything
that changes tokens or shapes, so two profiles or two models never share one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import Task
from calserve.runtime.contract import (
    BoardPackage,
    Golden,
    GraphContract,
    InactiveLanePolicy,
    KvLayout,
    TensorContract,
)
from calserve.runtime.sim import oracle
from calserve.runtime.sim.model import LOGIT_STEP
from calserve.runtime.sim.profile import ASSUMED_LANES, SimProfile

CSR_NAMES = ("current_sequence_length", "total_sequence_length")
KEY_SETTING = "model_key"
PROFILE_SETTING = "board_profile"  # the one a package on disk was compiled for; for people, and the command line
GOLDEN_PROMPT_LENGTHS = (1, 16, 33)
GOLDEN_TOKENS = 16


def sim_package(profile: SimProfile = ASSUMED_LANES, model: str = "sim-model") -> BoardPackage:
    """The package of `model` compiled for `profile`. No files; goldens carry the model's constant margin."""
    graphs = (prefill_graph(profile), *(decode_graph(profile, batch) for batch in profile.profiles))
    key = f"{oracle.model_key(model):016x}"
    identity = repr((profile.name, model, key, graphs, profile.eos_token_ids, profile.weight_bytes))
    if profile.kv_lanes:  # no graph shows how many there are
        identity += f"{profile.kv_lanes} lanes"
    return BoardPackage(
        root=Path("sim", model),
        hash=hashlib.sha256(identity.encode()).hexdigest(),
        model=model,
        board="sim",
        vocab_size=profile.vocab,
        context=profile.context,
        max_lanes=profile.lanes,
        profiles=profile.profiles,
        numerics="exact",
        weights="simulated",
        files=MappingProxyType({}),
        settings=MappingProxyType({KEY_SETTING: key}),
        kv=MappingProxyType({"unit_tokens": profile.context, "bytes_per_token": profile.kv_bytes_per_token}),
        weight_bytes=profile.weight_bytes,
        eos_token_ids=profile.eos_token_ids,
        graphs=graphs,
        goldens=tuple(
            _golden(length, profile, model)
            for length in GOLDEN_PROMPT_LENGTHS
            if length + GOLDEN_TOKENS <= profile.context
        ),
        golden_tolerance=0.0,
    )


def prefill_graph(profile: SimProfile) -> GraphContract:
    """`prefill_b1`: one row of up to the whole context; its KV lane is an input where there are several lanes."""
    binding = RowBinding.FREE if profile.lanes > 1 else RowBinding.FIXED
    width = profile.context
    inputs = {
        "tokens": _int32("tokens", (1, width), sliceable=True),
        "positions": _int32("positions", (1, width), sliceable=True),
    }
    if binding is RowBinding.FREE:
        inputs["kv_lanes"] = _int32("kv_lanes", (1,))
    return GraphContract(
        profile=GraphProfile(
            name="prefill_b1",
            tasks=frozenset({Task.PREFILL}),
            batch=1,
            batch_is_fixed=True,
            row_binding=binding,
            max_tokens=profile.context,
            max_row_tokens=width,
            max_job_tokens=width,
            min_chunk_tokens=1,
        ),
        kv_layout=KvLayout.LANES,
        inputs=MappingProxyType(inputs),
        outputs=_logits(profile, 1),
        csr_names=CSR_NAMES,
        inactive_lane_policy=None,
        vocab_size=profile.vocab,
        logits_tile=profile.logits_tile,
    )


def decode_graph(profile: SimProfile, batch: int) -> GraphContract:
    """`decode_b<batch>`: one token a row. Row i is KV lane i, unless the profile has `kv_lanes`: then that is an input.

    B1 takes its lengths from CSRs, others from tensors.
    """
    inputs = {name: _int32(name, (batch, 1)) for name in ("tokens", "positions")}
    binding, policy = RowBinding.FIXED, None
    if profile.kv_lanes:
        binding = RowBinding.FREE
        inputs["kv_lanes"] = _int32("kv_lanes", (batch,))
    if batch > 1:
        policy = profile.inactive_lane_policy
        inputs |= {name: _int32(name, (batch,)) for name in ("counts", "lengths")}
        if policy is InactiveLanePolicy.VALID_MASK:
            inputs["valid"] = _int32("valid", (batch,))
    outputs = _logits(profile, batch)
    timing = profile.timing
    moved = (sum(tensor.byte_size for tensor in side.values()) for side in (inputs, outputs))
    expected_ns = timing.launch_ns + timing.decode_ns[batch] + sum(timing.dma_ns(size) for size in moved)
    return GraphContract(
        profile=GraphProfile(
            name=f"decode_b{batch}",
            tasks=frozenset({Task.DECODE}),
            batch=batch,
            batch_is_fixed=True,
            row_binding=binding,
            max_tokens=profile.context,
            max_row_tokens=1,
            max_job_tokens=batch,
            min_chunk_tokens=1,
        ),
        kv_layout=KvLayout.LANES,
        inputs=MappingProxyType(inputs),
        outputs=outputs,
        csr_names=CSR_NAMES if batch == 1 else (),
        inactive_lane_policy=policy,
        vocab_size=profile.vocab,
        logits_tile=profile.logits_tile,
        expected_step_ns=expected_ns,
    )


def _golden(length: int, profile: SimProfile, model: str) -> Golden:
    prompt = tuple((7 * i + 3) % profile.vocab for i in range(length))
    output = oracle.greedy_tokens(prompt, GOLDEN_TOKENS, profile.vocab, model)
    return Golden(prompt, tuple(output), (LOGIT_STEP,) * GOLDEN_TOKENS)


def _int32(name: str, shape: tuple[int, ...], sliceable: bool = False) -> TensorContract:
    return TensorContract(name, shape, "int32", 4 * int(np.prod(shape)), sliceable)


def _logits(profile: SimProfile, batch: int) -> Mapping[str, TensorContract]:
    width = 4 if profile.logits_dtype == "float32" else 2
    tile = profile.logits_tile
    shape = (batch, profile.vocab) if tile == 1 else (-(-profile.vocab // tile), batch, tile)
    size = width * int(np.prod(shape))
    return MappingProxyType({"logits": TensorContract("logits", shape, profile.logits_dtype, size, False)})
