"""A package decoded: its parts as the schema has them, and what they become for a board.

Owns the step from entries of a manifest to a `BoardPackage`. Must not check anything (gates do) nor touch a board.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import Task
from calserve.package.manifest import (
    Compatibility,
    Goldens,
    GraphEntry,
    Manifest,
    MemoryMap,
    ModelEntry,
    TensorEntry,
)
from calserve.runtime.contract import (
    BoardPackage,
    Golden,
    GraphContract,
    InactiveLanePolicy,
    KvLayout,
    PackageSection,
    TensorContract,
)
from calserve.runtime.targets import TARGETS


@dataclass(frozen=True, slots=True)
class PackageTree:
    """A package decoded, every part checked against the schema.

    root: where its files are read. digest: sha256 of `checksums.sha256`. goldens: by model.
    """

    root: Path
    digest: str
    manifest: Manifest
    memory: MemoryMap
    compatibility: Compatibility
    goldens: Mapping[str, Goldens]


def graph_roles(manifest: Manifest, model: ModelEntry) -> tuple[str, ...]:
    """Roles of a model's graph files; none where nothing is compiled for the target."""
    if not TARGETS[manifest.target].is_compiled:
        return ()
    return tuple(f"{kind}:{graph.name}" for graph in model.graphs for kind in ("graph", "weights"))


def model_hash(tree: PackageTree, model: str) -> str:
    """What a model's evidence and generations are bound to: the package's hash, and in a combined one also its name."""
    if len(tree.manifest.models) == 1:
        return tree.digest
    return hashlib.sha256(f"{tree.digest} {model}".encode()).hexdigest()


def board_package(tree: PackageTree, model: ModelEntry) -> BoardPackage:
    """`model` as a board takes it."""
    goldens = tree.goldens[model.name]
    files = {**tree.manifest.files, **model.files}
    return BoardPackage(
        root=tree.root,
        hash=model_hash(tree, model.name),
        model=model.name,
        board=tree.manifest.target,
        vocab_size=model.vocab_size,
        context=model.context,
        max_lanes=model.lanes,
        profiles=model.profiles,
        numerics=model.numerics,
        weights=model.weights,
        files={role: tree.root / name for role, name in files.items()},
        settings=dict(model.settings),
        kv=msgspec.structs.asdict(model.kv),
        weight_bytes=model.weight_bytes,
        eos_token_ids=model.eos_token_ids,
        graphs=tuple(graph_contract(graph, model.vocab_size) for graph in model.graphs),
        goldens=tuple(Golden(g.prompt_ids, g.output_ids, g.margins) for g in goldens.goldens),
        golden_tolerance=goldens.tolerance,
        chip_mask=model.chip_mask,
        pinned=model.pinned,
        sections=tuple(
            PackageSection(section.kind, section.chip_mask, section.address, section.bytes)
            for section in tree.memory.sections
            if section.model == model.name
        ),
        bundle=tree.digest if len(tree.manifest.models) > 1 else "",
    )


def graph_contract(graph: GraphEntry, vocab_size: int) -> GraphContract:
    """`graph` as the executor and boards know it."""
    policy = graph.inactive_lane_policy
    return GraphContract(
        profile=GraphProfile(
            name=graph.name,
            tasks=frozenset(Task(task) for task in graph.tasks),
            batch=graph.batch.rows,
            batch_is_fixed=graph.batch.fixed,
            row_binding=RowBinding(graph.row_binding),
            max_tokens=graph.max_tokens,
            max_row_tokens=graph.max_row_tokens,
            max_job_tokens=graph.max_job_tokens,
            min_chunk_tokens=graph.min_chunk_tokens,
        ),
        kv_layout=KvLayout(graph.kv_layout),
        inputs={tensor.name: _tensor(tensor) for tensor in graph.inputs},
        outputs={tensor.name: _tensor(tensor) for tensor in graph.outputs},
        csr_names=graph.csr_names,
        inactive_lane_policy=None if policy is None else InactiveLanePolicy(policy),
        vocab_size=vocab_size,
        logits_tile=graph.logits_tile,
        min_flat_tokens=graph.min_flat_tokens,
        scratch_units=graph.scratch_units,
        expected_step_ns=graph.expected_step_ns,
    )


def _tensor(entry: TensorEntry) -> TensorContract:
    return TensorContract(entry.name, entry.shape, entry.dtype, entry.bytes, entry.sliceable)
