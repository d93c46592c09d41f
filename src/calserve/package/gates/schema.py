"""Gate B: every description fits its schema, and names are exact: nothing missing, surplus or repeated.

Owns decoding, roles, names and which graphs a model must have. Must not know a graph's tensors. A name is only ever
compared whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, TypeVar

from calserve.package.checksums import is_inside_name
from calserve.package.decode import MAX_TEXT_BYTES, Undecodable, decode_json, decode_yaml
from calserve.package.gates.finding import Findings, Place
from calserve.package.gates.profiles import check_profiles
from calserve.package.gates.work import FileChanged, FileTooLarge, Work, read_regular
from calserve.package.gates.xml_head import HEAD_BYTES, head_complaint
from calserve.package.manifest import (
    MANIFEST,
    MODEL_ROLES,
    PACKAGE_ROLES,
    Compatibility,
    Goldens,
    Manifest,
    MemoryMap,
    ModelEntry,
)
from calserve.package.tree import PackageTree, graph_roles
from calserve.runtime.targets import TARGETS

# Beside a package's own files these tell people what they may do with it.
FREE_FILES = frozenset({"LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "README.md", "USE_POLICY.md"})

T = TypeVar("T")


def check_schema(work: Work, findings: Findings) -> None:
    """Fill `work.manifest` and `work.tree`, unless something here refuses the package."""
    manifest = _read_manifest(work, findings)
    if manifest is None:
        return
    work.manifest = manifest
    _check_roles(work, manifest, findings)
    _check_names(manifest, findings)
    if findings.has_failed:
        return
    for model in manifest.models:
        check_profiles(model, findings)
        _check_settings(model, findings)
        if TARGETS[manifest.target].is_compiled and TARGETS[manifest.target].is_planned_here:
            _check_graph_heads(work, model, findings)
    _decode_parts(work, manifest, findings)


def read_part(work: Work, name: str, limit: int, findings: Findings, rules: tuple[str, str]) -> bytes | None:
    """Bytes of a file, or a finding. rules: one for a file that is too large, one for one that cannot be read."""
    at = Place(file=name)
    try:
        return work.checked_files().read(name, limit)
    except FileTooLarge:
        findings.add(rules[0], f"{name} is larger than {limit} bytes.", at, limit)
    except FileChanged:
        findings.add("A12", f"{name} was changed while the package was read.", at)
    except OSError as error:
        findings.add(rules[1], f"{name} cannot be read: {error.strerror or error}.", at)
    return None


def _read_manifest(work: Work, findings: Findings) -> Manifest | None:
    at = Place(file=MANIFEST)
    if MANIFEST not in work.checked_files().listed:
        findings.add("B01", f"It has no {MANIFEST}.", at)
        return None
    data = read_part(work, MANIFEST, MAX_TEXT_BYTES, findings, ("B02", "A02"))
    if data is None:
        return None
    try:
        return decode_yaml(data, Manifest)
    except Undecodable as error:
        findings.add("B03", f"{MANIFEST}: {error}.", at)
        return None


def _check_roles(work: Work, manifest: Manifest, findings: Findings) -> None:
    """Files by role, and roles by file."""
    filled = Counter[str]()
    _check_role_names(manifest.files, PACKAGE_ROLES, Place(file=MANIFEST), findings)
    _check_role_files(work, manifest.files, Place(), filled, findings)
    for model in manifest.models:
        at = Place(file=MANIFEST, model=model.name)
        _check_role_names(model.files, (*MODEL_ROLES, *graph_roles(manifest, model)), at, findings)
        _check_role_files(work, model.files, Place(model=model.name), filled, findings)
    for name in sorted(name for name, roles in filled.items() if roles > 1):
        findings.add("B10", f"{name} is the file of more than one role.", Place(file=name))
    for name in sorted(work.checked_files().sizes.keys() - {MANIFEST, *filled}):
        if PurePosixPath(name).name in FREE_FILES:
            continue
        findings.add("B12", f"{name} is the file of no role.", Place(file=name))


def _check_role_names(files: Mapping[str, str], roles: Iterable[str], at: Place, findings: Findings) -> None:
    expected = set(roles)
    for role in sorted(expected - files.keys()):
        findings.add("B06", f"{_whose(at)} names no file for {role}.", at)
    for role in sorted(files.keys() - expected):
        findings.add("B07", f"{_whose(at)} names a file for the unknown role {role}.", at)


def _whose(at: Place) -> str:
    return f"Model {at.model}" if at.model else "The manifest"


def _check_role_files(
    work: Work, files: Mapping[str, str], at: Place, filled: Counter[str], findings: Findings
) -> None:
    """Each file is inside and there. filled: counts a file once per role; once per model for weights."""
    sizes = work.checked_files().sizes
    weights: set[str] = set()
    for role, name in files.items():
        here = Place(file=name, model=at.model)
        if not is_inside_name(name):
            findings.add("B08", f"The file for {role}, {name!a}, is not inside the package.", here)
            continue
        if name not in sizes:
            findings.add("B09", f"{name}, the file for {role}, is not there.", here)
        elif not sizes[name] and role.startswith(("graph:", "weights:")):
            findings.add("B11", f"{name}, the file for {role}, is empty.", here)
        if role.startswith("weights:"):
            weights.add(name)
        else:
            filled[name] += 1
    filled.update(weights)


def _check_names(manifest: Manifest, findings: Findings) -> None:
    at = Place(file=MANIFEST)
    for name in _twice(model.name for model in manifest.models):
        findings.add("B13", f"The model {name} is there twice.", at)
    for model in manifest.models:
        for name in _twice(graph.name for graph in model.graphs):
            findings.add("B14", f"Model {model.name}: the graph {name} is there twice.", _at(model, name))
        for graph in model.graphs:
            here, whose = _at(model, graph.name), f"Graph {graph.name} of {model.name}"
            for name in _twice(tensor.name for tensor in (*graph.inputs, *graph.outputs)):
                findings.add("B15", f"{whose}: the tensor {name} is there twice.", here)
            for name in _twice(graph.tasks):
                findings.add("B16", f"{whose} names the task {name} twice.", here)


def _at(model: ModelEntry, graph: str) -> Place:
    return Place(file=MANIFEST, model=model.name, graph=graph)


def _twice(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def _check_settings(model: ModelEntry, findings: Findings) -> None:
    """Settings are numbers and names; what reads them must not be led to a file of this machine."""
    for key, value in model.settings.items():
        if "/" in value or "\\" in value or value.startswith((".", "~")):
            findings.add(
                "B22", f"Model {model.name}: the setting {key} is {value[:80]!a}, which is a path.",
                Place(file=MANIFEST, model=model.name), given=value[:80],
            )  # fmt: skip


def _check_graph_heads(work: Work, model: ModelEntry, findings: Findings) -> None:
    """A library that reads several formats tries them all on a file that is not the one it should be."""
    for role, name in model.files.items():
        if not role.startswith("graph:"):
            continue
        at = Place(file=name, model=model.name, graph=role.removeprefix("graph:"))
        try:
            wrong = head_complaint(read_regular(work.checked_files().root / name, HEAD_BYTES))
        except OSError as error:
            findings.add("A02", f"{name} cannot be read: {error.strerror or error}.", at)
            continue
        if wrong:
            findings.add("B23", f"{name} {wrong}.", at)


def _decode_parts(work: Work, manifest: Manifest, findings: Findings) -> None:
    memory = _decode(work, manifest.files["memory"], MemoryMap, findings)
    compatibility = _decode(work, manifest.files["compatibility"], Compatibility, findings)
    _check_provenance(work, manifest.files["provenance"], findings)
    goldens = {model.name: _decode(work, model.files["goldens"], Goldens, findings) for model in manifest.models}
    if memory is None or compatibility is None:
        return
    decoded = {name: value for name, value in goldens.items() if value is not None}
    if len(decoded) == len(goldens):
        files = work.checked_files()
        work.tree = PackageTree(files.root, files.digest, manifest, memory, compatibility, decoded)


def _decode(work: Work, name: str, kind: type[T], findings: Findings, rule: str = "B04") -> T | None:
    data = read_part(work, name, MAX_TEXT_BYTES, findings, ("B02", "A02"))
    if data is None:
        return None
    try:
        return decode_json(data, kind)
    except Undecodable as error:
        findings.add(rule, f"{name}: {error}.", Place(file=name))
        return None


def _check_provenance(work: Work, name: str, findings: Findings) -> None:
    _decode(work, name, dict[str, Any], findings, rule="B05")
