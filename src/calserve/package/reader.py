"""From a directory to a `BoardPackage`: the only way a package comes into the server.

Owns the order of the checks: files and checksums first, then the schema, then that its parts agree. Must not touch a
board. Life of the main object: a directory is verified whole, decoded, and becomes one frozen BoardPackage; the
files are not read again except by role.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import Task
from calserve.package.checksums import is_inside_name, verify_checksums
from calserve.package.decode import decode_json, decode_yaml
from calserve.package.fault import PackageError
from calserve.package.manifest import (
    MANIFEST,
    REQUIRED_ROLES,
    Compatibility,
    Goldens,
    GraphEntry,
    Manifest,
    MemoryPlan,
    TensorEntry,
)
from calserve.runtime.contract import (
    BoardPackage,
    Golden,
    GraphContract,
    InactiveLanePolicy,
    KvLayout,
    TensorContract,
)

ITEM_BYTES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
}


def open_package(path: Path) -> BoardPackage:
    """Verify the package at `path` and return it.

    Raises PackageError: one sentence, the rule it broke in `.fault.rule`.
    """
    if not path.is_dir():
        raise PackageError("not_a_directory", f"{path} is not a package directory.")
    root = path.resolve()
    try:
        digest = verify_checksums(root)
        manifest = _read_manifest(root)
        goldens = decode_json(root / manifest.files["goldens"], Goldens)
        decode_json(root / manifest.files["memory"], MemoryPlan)
        compatibility = decode_json(root / manifest.files["compatibility"], Compatibility)
    except OSError as error:
        raise PackageError("unreadable", f"{path} cannot be read: {error.strerror or error}.") from None
    _check_parts(root, manifest, goldens, compatibility)
    return _board_package(root, digest, manifest, goldens)


def _read_manifest(root: Path) -> Manifest:
    if not (root / MANIFEST).is_file():
        raise PackageError("manifest_missing", f"{root} has no {MANIFEST}.")
    manifest = decode_yaml(root / MANIFEST, Manifest)
    graph_roles = [f"{kind}:{graph.name}" for graph in manifest.graphs for kind in ("graph", "weights")]
    expected = {*REQUIRED_ROLES, *graph_roles}
    for role in sorted(expected - manifest.files.keys()):
        raise PackageError("role_missing", f"{root}: the manifest names no file for {role}.")
    for role in sorted(manifest.files.keys() - expected):
        raise PackageError("role_unknown", f"{root}: the manifest names a file for the unknown role {role}.")
    for role, name in manifest.files.items():
        if not is_inside_name(name):
            raise PackageError("file_outside", f"{root}: the file for {role} is not inside the package.")
        if not (root / name).is_file():
            raise PackageError("file_missing", f"{root}: {name}, the file for {role}, is not there.")
    return manifest


def _check_parts(root: Path, manifest: Manifest, goldens: Goldens, compatibility: Compatibility) -> None:
    """Raise PackageError where two parts of the package contradict each other."""
    if compatibility.board != manifest.board:
        raise PackageError(
            "board_differs",
            f"{root}: the manifest is for board {manifest.board}, compatibility.json for {compatibility.board}.",
        )
    if manifest.context > manifest.trained_context:
        raise PackageError(
            "context_too_long",
            f"{root}: the context {manifest.context} is longer than the {manifest.trained_context} tokens the "
            "model was trained for.",
            manifest.trained_context,
            manifest.context,
        )
    profiles = manifest.profiles
    if list(profiles) != sorted(set(profiles)) or profiles[-1] != manifest.lanes:
        raise PackageError(
            "profiles_order",
            f"{root}: profiles {list(profiles)} must rise and end with the number of lanes, {manifest.lanes}.",
        )
    _check_unique(root, "graph", (graph.name for graph in manifest.graphs))
    for graph in manifest.graphs:
        _check_unique(root, f"tensor of graph {graph.name}", (t.name for t in (*graph.inputs, *graph.outputs)))
        _check_graph(root, manifest, graph)
    for i, golden in enumerate(goldens.goldens):
        if len(golden.margins) != len(golden.output_ids):
            raise PackageError("golden_form", f"{root}: golden {i} has not one margin per output token.")
    used = [t for g in goldens.goldens for t in (*g.prompt_ids, *g.output_ids)]
    worst = max((*used, *manifest.eos_token_ids))
    if worst >= manifest.vocab_size:
        raise PackageError(
            "token_range",
            f"{root}: token id {worst} is not below the vocabulary size {manifest.vocab_size}.",
            manifest.vocab_size,
            worst,
        )


def _check_unique(root: Path, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PackageError("name_repeated", f"{root}: the {what} named {name} is there twice.")
        seen.add(name)


def _check_graph(root: Path, manifest: Manifest, graph: GraphEntry) -> None:
    if len(set(graph.tasks)) != len(graph.tasks):
        raise PackageError("name_repeated", f"{root}: graph {graph.name} names a task twice.")
    if graph.batch.rows > 1 and graph.inactive_lane_policy is None:
        raise PackageError(
            "inactive_lane_policy",
            f"{root}: graph {graph.name} runs {graph.batch.rows} lanes and declares no policy for unused ones.",
        )
    if graph.max_tokens < manifest.context:
        raise PackageError(
            "graph_context",
            f"{root}: graph {graph.name} addresses {graph.max_tokens} tokens, below the context {manifest.context}.",
            manifest.context,
            graph.max_tokens,
        )


def _board_package(root: Path, digest: str, manifest: Manifest, goldens: Goldens) -> BoardPackage:
    return BoardPackage(
        root=root,
        hash=digest,
        model=manifest.model,
        board=manifest.board,
        vocab_size=manifest.vocab_size,
        context=manifest.context,
        max_lanes=manifest.lanes,
        profiles=manifest.profiles,
        numerics=manifest.numerics,
        weights=manifest.weights,
        files={role: root / name for role, name in manifest.files.items()},
        settings=dict(manifest.settings),
        kv=msgspec.structs.asdict(manifest.kv),
        weight_bytes=manifest.weight_bytes,
        eos_token_ids=manifest.eos_token_ids,
        graphs=tuple(_graph_contract(graph, manifest.vocab_size) for graph in manifest.graphs),
        goldens=tuple(Golden(g.prompt_ids, g.output_ids, g.margins) for g in goldens.goldens),
        golden_tolerance=manifest.golden_tolerance,
    )


def _graph_contract(graph: GraphEntry, vocab_size: int) -> GraphContract:
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
    size = ITEM_BYTES[entry.dtype]
    for dimension in entry.shape:
        size *= dimension
    return TensorContract(entry.name, entry.shape, entry.dtype, size, entry.sliceable)
