"""From a directory to what a board takes: the only way a package comes into the server.

Owns the order of the checks: files and checksums first, then the schema, then that its parts agree. Must not touch a
board. Life of the main object: a directory is verified whole, decoded into one PackageTree, and becomes one frozen
BoardPackage a model; the files are not read again except by role.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import Task
from calserve.package.checksums import is_inside_name, verify_checksums
from calserve.package.decode import decode_json, decode_yaml
from calserve.package.fault import PackageError
from calserve.package.manifest import (
    MANIFEST,
    MODEL_ROLES,
    PACKAGE_ROLES,
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
    TensorContract,
)
from calserve.runtime.targets import TARGETS


@dataclass(frozen=True, slots=True)
class PackageTree:
    """A package decoded, every part checked against the schema and none against another yet.

    digest: sha256 of `checksums.sha256`. goldens: by model.
    """

    root: Path
    digest: str
    manifest: Manifest
    memory: MemoryMap
    compatibility: Compatibility
    goldens: Mapping[str, Goldens]


def open_package(path: Path) -> BoardPackage:
    """Verify the package of one model at `path` and return it.

    Raises PackageError: one sentence, the rule it broke in `.fault.rule`.
    """
    models = open_models(path)
    if len(models) != 1:
        names = ", ".join(model.model for model in models)
        raise PackageError("several_models", f"{path} holds {len(models)} models ({names}), and one is needed here.")
    return models[0]


def open_models(path: Path) -> tuple[BoardPackage, ...]:
    """As `open_package`, for a package of any number of models, in the manifest's order."""
    tree = read_tree(path)
    _check_parts(tree)
    return tuple(_board_package(tree, model) for model in tree.manifest.models)


def read_tree(path: Path) -> PackageTree:
    """The package at `path`, its files held against their checksums and decoded. Raises PackageError."""
    if not path.is_dir():
        raise PackageError("not_a_directory", f"{path} is not a package directory.")
    root = path.resolve()
    try:
        digest = verify_checksums(root)
        manifest = _read_manifest(root)
        goldens = {model.name: decode_json(root / model.files["goldens"], Goldens) for model in manifest.models}
        memory = decode_json(root / manifest.files["memory"], MemoryMap)
        compatibility = decode_json(root / manifest.files["compatibility"], Compatibility)
    except OSError as error:
        raise PackageError("unreadable", f"{path} cannot be read: {error.strerror or error}.") from None
    return PackageTree(root, digest, manifest, memory, compatibility, goldens)


def _read_manifest(root: Path) -> Manifest:
    if not (root / MANIFEST).is_file():
        raise PackageError("manifest_missing", f"{root} has no {MANIFEST}.")
    manifest = decode_yaml(root / MANIFEST, Manifest)
    _check_unique(root, "model", (model.name for model in manifest.models))
    _check_files(root, manifest.files, PACKAGE_ROLES)
    for model in manifest.models:
        _check_files(root, model.files, (*MODEL_ROLES, *graph_roles(manifest, model)))
    return manifest


def graph_roles(manifest: Manifest, model: ModelEntry) -> tuple[str, ...]:
    """Roles of a model's graph files; none where nothing is compiled for the target."""
    if not TARGETS[manifest.target].is_compiled:
        return ()
    return tuple(f"{kind}:{graph.name}" for graph in model.graphs for kind in ("graph", "weights"))


def _check_files(root: Path, files: Mapping[str, str], roles: Iterable[str]) -> None:
    expected = set(roles)
    for role in sorted(expected - files.keys()):
        raise PackageError("role_missing", f"{root}: the manifest names no file for {role}.")
    for role in sorted(files.keys() - expected):
        raise PackageError("role_unknown", f"{root}: the manifest names a file for the unknown role {role}.")
    for role, name in files.items():
        if not is_inside_name(name):
            raise PackageError("file_outside", f"{root}: the file for {role} is not inside the package.")
        if not (root / name).is_file():
            raise PackageError("file_missing", f"{root}: {name}, the file for {role}, is not there.")


def _check_parts(tree: PackageTree) -> None:
    """Raise PackageError where two parts of the package contradict each other."""
    root, manifest = tree.root, tree.manifest
    if tree.compatibility.target != manifest.target:
        raise PackageError(
            "target_differs",
            f"{root}: the manifest is for target {manifest.target}, compatibility.json for "
            f"{tree.compatibility.target}.",
        )
    for model in manifest.models:
        _check_model(root, model, tree.goldens[model.name])


def _check_model(root: Path, model: ModelEntry, goldens: Goldens) -> None:
    if model.context > model.trained_context:
        raise PackageError(
            "context_too_long",
            f"{root}: the context {model.context} is longer than the {model.trained_context} tokens the "
            "model was trained for.",
            model.trained_context,
            model.context,
        )
    profiles = model.profiles
    if list(profiles) != sorted(set(profiles)) or profiles[-1] != model.lanes:
        raise PackageError(
            "profiles_order",
            f"{root}: profiles {list(profiles)} must rise and end with the number of lanes, {model.lanes}.",
        )
    _check_unique(root, "graph", (graph.name for graph in model.graphs))
    for graph in model.graphs:
        _check_unique(root, f"tensor of graph {graph.name}", (t.name for t in (*graph.inputs, *graph.outputs)))
        _check_graph(root, model, graph)
    for i, golden in enumerate(goldens.goldens):
        if len(golden.margins) != len(golden.output_ids):
            raise PackageError("golden_form", f"{root}: golden {i} has not one margin per output token.")
    used = [t for g in goldens.goldens for t in (*g.prompt_ids, *g.output_ids)]
    worst = max((*used, *model.eos_token_ids))
    if worst >= model.vocab_size:
        raise PackageError(
            "token_range",
            f"{root}: token id {worst} is not below the vocabulary size {model.vocab_size}.",
            model.vocab_size,
            worst,
        )


def _check_unique(root: Path, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PackageError("name_repeated", f"{root}: the {what} named {name} is there twice.")
        seen.add(name)


def _check_graph(root: Path, model: ModelEntry, graph: GraphEntry) -> None:
    if len(set(graph.tasks)) != len(graph.tasks):
        raise PackageError("name_repeated", f"{root}: graph {graph.name} names a task twice.")
    if graph.batch.rows > 1 and graph.inactive_lane_policy is None:
        raise PackageError(
            "inactive_lane_policy",
            f"{root}: graph {graph.name} runs {graph.batch.rows} lanes and declares no policy for unused ones.",
        )
    if graph.max_tokens < model.context:
        raise PackageError(
            "graph_context",
            f"{root}: graph {graph.name} addresses {graph.max_tokens} tokens, below the context {model.context}.",
            model.context,
            graph.max_tokens,
        )


def _board_package(tree: PackageTree, model: ModelEntry) -> BoardPackage:
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
        graphs=tuple(_graph_contract(graph, model.vocab_size) for graph in model.graphs),
        goldens=tuple(Golden(g.prompt_ids, g.output_ids, g.margins) for g in goldens.goldens),
        golden_tolerance=goldens.tolerance,
        chip_mask=model.chip_mask,
        pinned=model.pinned,
    )


def model_hash(tree: PackageTree, model: str) -> str:
    """What a model's evidence and generations are bound to: the package's hash, and in a combined one also its name."""
    if len(tree.manifest.models) == 1:
        return tree.digest
    return hashlib.sha256(f"{tree.digest} {model}".encode()).hexdigest()


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
    return TensorContract(entry.name, entry.shape, entry.dtype, entry.bytes, entry.sliceable)
