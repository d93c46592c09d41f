"""The heads of safetensors files: which tensors they hold, checked without reading a weight.

Owns the format's bounds. Must not know models. A safetensors file is eight bytes of length, that much JSON, and data;
nothing in it can be run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from calserve.package.fault import PackageError

MAX_HEAD_BYTES = 32 << 20  # some 300,000 tensors
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class _Entry(msgspec.Struct, frozen=True):
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[Size, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[Size, Size]


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """file: name of the file it lies in. n_bytes: of its data, which are there."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int


def read_heads(files: list[Path]) -> dict[str, HeldTensor]:
    """Every tensor of `files`, by name.

    Raises PackageError: a file that is no safetensors file, is cut short or longer than it says, weights of a type
    that is not plain floating point, a tensor that is there twice.
    """
    found: dict[str, HeldTensor] = {}
    for path in files:
        for name, tensor in _read_head(path).items():
            if name in found:
                raise PackageError("safetensors", f"{path} holds {name[:80]}, which another file holds too.")
            found[name] = tensor
    return found


def _read_head(path: Path) -> dict[str, HeldTensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEAD_BYTES, size - 8):
            raise _damaged(path, "its head is longer than the file or than 32 MiB")
        data = file.read(length)
    try:
        head = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        head.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in head.items()}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _damaged(path, " ".join(str(error).split())[:120]) from None
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in ITEM_BYTES:
            raise PackageError(
                "not_supported", f"not supported: {path} holds weights of type {entry.dtype}, not plain floating point."
            )
        begin, end = entry.data_offsets
        if begin != at or end - begin != math.prod(entry.shape) * ITEM_BYTES[entry.dtype]:
            raise _damaged(path, f"{name[:80]} does not lie where the head says")
        at = end
    if 8 + length + at != size:
        raise _damaged(path, "it is cut short or longer than it says")
    return {
        name: HeldTensor(path.name, entry.dtype, entry.shape, entry.data_offsets[1] - entry.data_offsets[0])
        for name, entry in entries.items()
    }


def _damaged(path: Path, why: str) -> PackageError:
    return PackageError("safetensors", f"{path} is a damaged safetensors file ({why}).")
