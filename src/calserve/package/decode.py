"""Bounded, strict decoding of a package's YAML and JSON.

Owns the size limits and the refusal of aliases and repeated keys; must not know which file it reads beyond its
struct. Nothing here can construct anything but plain data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from calserve.package.fault import PackageError

MAX_TEXT_BYTES = 4 << 20  # manifests are kilobytes; a combined package of many models stays far below

T = TypeVar("T")


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without aliases (they can grow without bound) and without repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not allowed", None)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain name", None)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is repeated", None)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_bounded(path: Path) -> bytes:
    """The file's bytes; PackageError when it is larger than MAX_TEXT_BYTES."""
    with path.open("rb") as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise PackageError("file_size", f"{path} is larger than {MAX_TEXT_BYTES} bytes.", MAX_TEXT_BYTES)
    return data


def decode_yaml(path: Path, kind: type[T]) -> T:
    """`path` as a `kind`; PackageError naming the field that is wrong, unknown or missing."""
    data = read_bounded(path)
    try:
        raw = yaml.load(data, Loader=_StrictLoader)
        return msgspec.convert(raw, kind, strict=True)
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError, ValueError) as error:
        raise PackageError("manifest_schema", f"{path}: {_first_line(error)}.") from None


def decode_json(path: Path, kind: type[T]) -> T:
    """As `decode_yaml`, for JSON."""
    data = read_bounded(path)
    try:
        return msgspec.json.decode(data, type=kind, strict=True)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PackageError("json_schema", f"{path}: {_first_line(error)}.") from None


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
