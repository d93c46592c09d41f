"""Two packages of one chip each into one of two models (seed 004, section 6): A on chip 0, B on chip 1.

Owns: what may be combined, the names inside the result, and the address plan over both. Must not know: boards, or how
either package was made. Nothing is compiled or changed: graphs, weights, tokenizers and goldens are copied as they were
verified, and only the descriptions are written anew. Life of the main object: a CombineReport, made when the result
stands and has been opened once.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from calserve import __version__
from calserve.package.address import SectionNeed, chips_of, lay_out
from calserve.package.checksums import file_sha256
from calserve.package.fault import PackageError
from calserve.package.manifest import (
    CHECKSUMS,
    MANIFEST,
    NAME_PATTERN,
    SCHEMA,
    SIGNATURE,
    Compatibility,
    GraphEntry,
    Manifest,
    MemoryMap,
    ModelEntry,
    Section,
)
from calserve.package.pack.describe import write_json, write_manifest
from calserve.package.pack.target import check_room, new_directory
from calserve.package.reader import PackageTree, open_tree
from calserve.progress import Progress
from calserve.runtime.targets import TARGETS

PARTS: Final = ("model-a", "model-b")
TEXT_ROLES: Final = ("tokenizer", "chat_template")
PACKAGE_FILES: Final = {
    "memory": "memory.json",
    "compatibility": "compatibility.json",
    "provenance": "build-provenance.json",
}
# Both models at work at once is what such a package is for.
NEEDED_CAPABILITY: Final = "concurrent_chips"


@dataclass(frozen=True, slots=True)
class CombineOptions:
    """alias_a, alias_b: the names they are served under; "" keeps a parent's own."""

    alias_a: str = ""
    alias_b: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True)
class CombineReport:
    """What was made. models: alias -> its chip."""

    target: Path
    hash: str
    models: dict[str, int]
    total_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Parent:
    """One of the two. part: its folder in the result. files: name in the parent -> name in the result."""

    tree: PackageTree
    alias: str
    chip: int
    part: str
    files: dict[str, str]

    @property
    def model(self) -> ModelEntry:
        return self.tree.manifest.models[0]

    @property
    def mask(self) -> int:
        return 1 << self.chip


def combine(a: Path, b: Path, target: Path, options: CombineOptions, progress: Progress) -> CombineReport:
    """Combine the packages at `a` and `b` into the new directory `target`.

    Raises PackageError (one sentence): a parent that is no good package, holds several models or spans chips, targets
    or runtimes that differ, a target whose address plan only its vendor's compiler can make, aliases that are the same,
    and a target directory as `new_directory` has it.
    """
    begun = perf_counter()
    parents = []
    for chip, (path, alias) in enumerate(((a, options.alias_a), (b, options.alias_b))):
        with progress.step(f"Checking {path}"):
            parents.append(_parent(open_tree(path), alias, chip))
    first, second = parents
    _check_pair(first, second)
    check_room(target, sum(_size(each) for each in parents))
    with new_directory(target, options.force) as root:
        for parent in parents:
            _copy(parent, root, progress)
        write_json(root / PACKAGE_FILES["memory"], _memory_map(first, second))
        write_json(root / PACKAGE_FILES["compatibility"], _compatibility(first, second))
        write_json(root / PACKAGE_FILES["provenance"], {"combined": [_origin(each) for each in parents], **_tools()})
        models = tuple(_model_entry(each) for each in parents)
        write_manifest(root, Manifest(SCHEMA, first.tree.manifest.target, models, dict(PACKAGE_FILES)))
    made = open_tree(target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    chips = {parent.alias: parent.chip for parent in parents}
    return CombineReport(target, made.digest, chips, size, perf_counter() - begun)


# --- what may be combined -----------------------------------------------------------------------------------------


def _parent(tree: PackageTree, alias: str, chip: int) -> _Parent:
    """Raises PackageError where the package cannot be half of a combined one."""
    root, manifest = tree.root, tree.manifest
    if not TARGETS[manifest.target].is_planned_here:
        raise PackageError(
            "combine_target",
            f"{root} is for target {manifest.target}, whose address plan is its compiler's: only the vendor's compiler "
            "can combine such models.",
        )
    if len(manifest.models) != 1:
        raise PackageError(
            "combine_models", f"{root} holds {len(manifest.models)} models; only packages of one can be combined."
        )
    model = manifest.models[0]
    _check_chip(tree, model, chip)
    if alias and not re.fullmatch(NAME_PATTERN, alias):
        raise PackageError("alias", f"{alias!r} cannot be a model's name: letters, digits, and ._/:- inside.")
    return _Parent(tree, alias or model.name, chip, PARTS[chip], _new_names(tree, PARTS[chip]))


def _check_chip(tree: PackageTree, model: ModelEntry, chip: int) -> None:
    """Everything of the model is on one chip, and may be on this one."""
    root = tree.root
    masks = [("model", model.name, model.chip_mask)]
    masks += [("graph", graph.name, graph.chip_mask) for graph in model.graphs]
    masks += [("section", section.name, section.chip_mask) for section in tree.memory.sections]
    for what, name, mask in masks:
        if len(chips_of(mask)) != 1 or mask != model.chip_mask:
            chips = ", ".join(map(str, chips_of(mask)))
            raise PackageError(
                "combine_chips",
                f"{root}: {what} {name} is on chips {chips}; a combined package gives each model one chip, and none of "
                "it may cross to another.",
                1,
                len(chips_of(mask)),
            )
    if model.pinned and model.chip_mask != 1 << chip:
        raise PackageError(
            "combine_pinned",
            f"{root}: {model.name} is pinned to chip {chips_of(model.chip_mask)[0]} and would have to be on {chip}.",
            chips_of(model.chip_mask)[0],
            chip,
        )
    if tree.memory.plan != "packer" or not tree.memory.sections:
        raise PackageError(
            "combine_plan",
            f"{root}: its address plan is the {tree.memory.plan}'s, so another cannot be made; only the vendor's "
            "compiler can combine such models.",
        )


def _check_pair(first: _Parent, second: _Parent) -> None:
    pairs = (
        ("combine_target", "targets", first.tree.manifest.target, second.tree.manifest.target),
        ("combine_runtime", "runtimes", first.tree.compatibility.runtime, second.tree.compatibility.runtime),
    )
    for rule, what, one, other in pairs:
        if one != other:
            raise PackageError(
                rule, f"{first.tree.root} and {second.tree.root} have different {what}: {one} and {other}.", one, other
            )
    if first.alias == second.alias:
        raise PackageError(
            "combine_alias", f"both models would answer to {first.alias}; give one another name with --alias-b."
        )
    if not _devices(first, second):
        raise PackageError(
            "combine_devices",
            f"no device may run both: {', '.join(first.tree.compatibility.devices)}; "
            f"{', '.join(second.tree.compatibility.devices)}.",
        )


def _devices(first: _Parent, second: _Parent) -> tuple[str, ...]:
    others = set(second.tree.compatibility.devices)
    return tuple(device for device in first.tree.compatibility.devices if device in others)


# --- files --------------------------------------------------------------------------------------------------------


def _listed(tree: PackageTree) -> dict[str, str]:
    """name -> sha256 as the parent was verified; the list is held against the package's hash once more."""
    data = (tree.root / CHECKSUMS).read_bytes()
    if hashlib.sha256(data).hexdigest() != tree.digest:
        raise PackageError("file_altered", f"{tree.root} was changed while it was read.")
    lines = (line.partition("  ") for line in data.decode().splitlines())
    return {name: digest for digest, _, name in lines}


def _new_names(tree: PackageTree, part: str) -> dict[str, str]:
    """Every file but the package's own descriptions: texts under tokenizer/PART, all else under PART as it lay."""
    own = {MANIFEST, CHECKSUMS, SIGNATURE, *tree.manifest.files.values()}
    model = tree.manifest.models[0]
    texts = {model.files[role] for role in TEXT_ROLES}
    return {
        name: f"tokenizer/{part}/{name}" if name in texts else f"{part}/{name}"
        for name in sorted(_listed(tree))
        if name not in own
    }


def _size(parent: _Parent) -> int:
    return sum((parent.tree.root / name).stat().st_size for name in parent.files)


def _copy(parent: _Parent, root: Path, progress: Progress) -> None:
    """Copied, then held against what was verified: a file that changed on the way ends this."""
    listed = _listed(parent.tree)
    with progress.step(f"Copying {parent.alias}", _size(parent), "B") as step:
        for name, new in parent.files.items():
            to = root / new
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(parent.tree.root / name, to)
            if file_sha256(to) != listed[name]:
                raise PackageError("file_altered", f"{parent.tree.root}: {name} was changed while it was copied.")
            step.advance(to.stat().st_size)


# --- descriptions -------------------------------------------------------------------------------------------------


def _model_entry(parent: _Parent) -> ModelEntry:
    model = parent.model
    graphs: tuple[GraphEntry, ...] = tuple(
        msgspec.structs.replace(graph, chip_mask=parent.mask) for graph in model.graphs
    )
    return msgspec.structs.replace(
        model,
        name=parent.alias,
        chip_mask=parent.mask,
        pinned=True,
        graphs=graphs,
        files={role: parent.files[name] for role, name in model.files.items()},
    )


def _memory_map(first: _Parent, second: _Parent) -> MemoryMap:
    """One plan over both. Each model has a chip to itself, so nothing it writes can be another's."""
    parents = (first, second)
    needs = [
        SectionNeed(parent.alias, section.kind, parent.mask, section.bytes)
        for parent in parents
        for section in parent.tree.memory.sections
    ]
    sections, chips = lay_out(needs)
    guards = {parent.chip: max(chip.guard_bytes for chip in parent.tree.memory.chips) for parent in parents}
    reserves = tuple(msgspec.structs.replace(each, guard_bytes=guards[each.chip]) for each in chips)
    models = tuple(msgspec.structs.replace(each.tree.memory.models[0], model=each.alias) for each in parents)
    return MemoryMap("packer", models, reserves, _named(sections))


def _named(sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """Two pieces of one kind in one model are told apart by a number."""
    seen: dict[str, int] = {}
    named = []
    for section in sections:
        seen[section.name] = seen.get(section.name, 0) + 1
        number = seen[section.name]
        named.append(section if number == 1 else msgspec.structs.replace(section, name=f"{section.name}.{number}"))
    return tuple(named)


def _compatibility(first: _Parent, second: _Parent) -> Compatibility:
    one, other = first.tree.compatibility, second.tree.compatibility
    needed = tuple(dict.fromkeys((*one.capabilities, *other.capabilities, NEEDED_CAPABILITY)))
    return Compatibility(one.target, one.runtime, _devices(first, second), needed)


def _origin(parent: _Parent) -> dict[str, Any]:
    """The parent's hash and its own account of how it came to be; nothing of where it lay."""
    text = (parent.tree.root / parent.tree.manifest.files["provenance"]).read_bytes()
    try:
        provenance = msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise PackageError("provenance", f"{parent.tree.root}: its provenance is not JSON.") from None
    return {
        "alias": parent.alias,
        "chip": parent.chip,
        "model": parent.model.name,
        "hash": parent.tree.digest,
        "provenance": provenance,
    }


def _tools() -> dict[str, Any]:
    return {"tools": {"calserve": __version__}}
