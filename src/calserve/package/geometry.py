"""What a model is, as far as memory goes: its layers, KV and parameters, each figure with its source.

Owns the format `calserve-geometry/v1`, the geometries that ship in `geometries/`, and how a package is read as one.
Must not know boards, budgets or where a model will run. Life: a geometry is read once and frozen; a wrong file ends
that with one sentence.

A figure is `{value: ..., source: where it is written}` or `{value: ..., assumed: why this}`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from calserve import strict_yaml
from calserve.package.address import chips_of
from calserve.package.fault import PackageError
from calserve.package.manifest import NAME_PATTERN, ModelEntry, Section
from calserve.package.reader import PackageTree

SCHEMA: Final = "calserve-geometry/v1"
FOLDER = Path(__file__).parent / "geometries"
SUFFIXES = (".yaml", ".yml", ".json")

KvDtype: TypeAlias = Literal["float16", "float32", "uint8", "bfloat16"]
V = TypeVar("V")
Words: TypeAlias = Annotated[str, msgspec.Meta(min_length=3, max_length=400)]
Few: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 12)]
Many: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
# 2^46 parameters or bytes is beyond anything that is compiled; more is a slip of the keyboard.
Huge: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 46)]
OnChips: TypeAlias = Annotated[tuple[Huge, ...], msgspec.Meta(min_length=1, max_length=32)]
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler has already laid out: one entry a chip, of the chips the graphs are compiled for.

    reserved_bytes: everything the package reserves on the chip, from address 0. sections: its parts by kind, where the
    address plan is known; None where only the whole is.
    """

    context: int
    lanes: int
    weight_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    sections: tuple[Mapping[str, int], ...] | None = None

    @property
    def chips(self) -> int:
        return len(self.weight_bytes)


@dataclass(frozen=True, slots=True)
class Geometry:
    """One model. parameters, n_heads, hidden_size, ffn_size: 0 where nothing states them (a package does not).

    ffn_size: width of the feed-forward part that one token uses; of a mixture of experts, that of its chosen ones
    together. context: the longest sequence it was trained for. sources: where each figure comes from, by its name.
    """

    name: str
    architecture: str
    n_layers: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    context: int
    kv_dtype: KvDtype
    sources: Mapping[str, str]
    parameters: int = 0
    n_heads: int = 0
    hidden_size: int = 0
    ffn_size: int = 0
    compiled: Compiled | None = None

    def sha256(self) -> str:
        """Of every figure; where it comes from is words about it and changes nothing."""
        figures = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "sources"}
        if self.compiled is not None:
            figures["compiled"] = [repr(getattr(self.compiled, each.name)) for each in fields(self.compiled)]
        return hashlib.sha256(msgspec.json.encode(figures, order="sorted")).hexdigest()


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class _Figure(_Part, Generic[V], frozen=True):
    value: V
    source: Words | None = None
    assumed: Words | None = None


class _Figures(_Part, frozen=True):
    parameters: _Figure[Huge]
    n_layers: _Figure[Few]
    n_heads: _Figure[Few]
    n_kv_heads: _Figure[Few]
    head_dim: _Figure[Few]
    hidden_size: _Figure[Many]
    ffn_size: _Figure[Many]
    vocab_size: _Figure[Many]
    context: _Figure[Many]
    kv_dtype: _Figure[KvDtype]


class _Compiled(_Part, frozen=True):
    context: _Figure[Many]
    lanes: _Figure[Few]
    weight_bytes: _Figure[OnChips]
    reserved_bytes: _Figure[OnChips]


class _File(_Part, frozen=True):
    schema: str
    name: Name
    architecture: Name
    figures: _Figures
    compiled: _Compiled | None = None


def shipped_geometries() -> tuple[str, ...]:
    """Names of the geometries that ship."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load_geometry(name_or_path: str | Path) -> Geometry:
    """A geometry that ships, by its name, or one in a file.

    Raises PackageError: one sentence naming the file and the key.
    """
    name = str(name_or_path)
    if name in shipped_geometries():
        return _read(FOLDER / f"{name}.yaml")
    path = Path(name_or_path)
    if path.name == name and path.suffix not in SUFFIXES and not path.exists():
        ours = ", ".join(shipped_geometries())
        raise PackageError("geometry_unknown", f"There is no geometry {name[:80]!r}; there are {ours}, or name a file.")
    return _read(path)


def _read(path: Path) -> Geometry:
    try:
        tree = strict_yaml.parse(strict_yaml.read_text(path, "geometry"))
        if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
            raise strict_yaml.Wrong(f"must be a mapping that starts with 'schema: {SCHEMA}'.")
        return _geometry(strict_yaml.convert(tree, _File))
    except strict_yaml.Wrong as error:
        raise PackageError("geometry_form", f"{path}: {error}") from None


def _geometry(file: _File) -> Geometry:
    sources: dict[str, str] = {}
    figures = _values("figures", file.figures, sources)
    return Geometry(
        name=file.name,
        architecture=file.architecture,
        **figures,
        compiled=None if file.compiled is None else _compiled(file.compiled, figures["context"], sources),
        sources=MappingProxyType(sources),
    )


def _compiled(part: _Compiled, trained: int, sources: dict[str, str]) -> Compiled:
    named: dict[str, str] = {}
    compiled = Compiled(**_values("compiled", part, named))
    sources |= {f"compiled.{name}": source for name, source in named.items()}
    if len(compiled.weight_bytes) != len(compiled.reserved_bytes):
        raise strict_yaml.Wrong("compiled: weight_bytes and reserved_bytes must be of the same chips.")
    for weights, reserved in zip(compiled.weight_bytes, compiled.reserved_bytes, strict=True):
        if weights > reserved:
            raise strict_yaml.Wrong(f"compiled.reserved_bytes: {reserved} hold no weights of {weights} bytes.")
    if compiled.context > trained:
        raise strict_yaml.Wrong(f"compiled.context: {compiled.context} is more than the model's {trained}.")
    return compiled


def _values(section: str, part: _Part, sources: dict[str, str]) -> dict[str, Any]:
    values = {}
    for name in part.__struct_fields__:
        figure = getattr(part, name)
        if (figure.source is None) is (figure.assumed is None):
            raise strict_yaml.Wrong(f"{section}.{name} needs one of source (where it is written) and assumed (why).")
        values[name] = figure.value
        sources[name] = figure.source if figure.assumed is None else f"assumed: {figure.assumed}"
    return values


def package_geometry(tree: PackageTree, model: ModelEntry) -> Geometry:
    """A packed model as a geometry: what it is from the manifest, what it takes from the address plan.

    Chips are counted from 0 whichever the mask names.
    """
    chips = chips_of(model.chip_mask)
    memory = next(entry for entry in tree.memory.models if entry.model == model.name)
    held = [[s for s in tree.memory.sections if s.model == model.name and s.chip_mask >> chip & 1] for chip in chips]
    sections = tuple(_by_kind(sections) for sections in held)
    reserved = {each.chip: each.bytes for each in tree.memory.chips}
    whole = -(-(memory.weight_bytes + memory.kv_bytes + memory.io_bytes) // len(chips))
    compiled = Compiled(
        context=model.context,
        lanes=model.lanes,
        weight_bytes=tuple(kinds.get("weights", -(-memory.weight_bytes // len(chips))) for kinds in sections),
        reserved_bytes=tuple(reserved.get(chip, whole) for chip in chips),
        sections=sections if all(held) else None,
    )
    manifest = "the package's manifest"
    figures = ("n_layers", "n_kv_heads", "head_dim", "vocab_size", "context", "kv_dtype")
    plan = "the package's address plan" if all(held) else "the package's memory map"
    compiled_figures = ("context", "lanes", "weight_bytes", "reserved_bytes")
    return Geometry(
        name=model.name,
        architecture=model.architecture,
        n_layers=model.kv.n_layers,
        n_kv_heads=model.kv.n_kv_heads,
        head_dim=model.kv.head_dim,
        vocab_size=model.vocab_size,
        context=model.trained_context,
        kv_dtype=model.kv.dtype,
        sources=MappingProxyType(
            dict.fromkeys(figures, manifest) | {f"compiled.{name}": plan for name in compiled_figures}
        ),
        compiled=compiled,
    )


def _by_kind(sections: list[Section]) -> Mapping[str, int]:
    kinds: dict[str, int] = {}
    for section in sections:
        kinds[section.kind] = kinds.get(section.kind, 0) + section.bytes
    return MappingProxyType(kinds)
