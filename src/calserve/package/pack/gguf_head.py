"""A GGUF's header, walked once before a library that believes it reads it.

Owns the bounds of what a header may claim. Must not know what a key means. Nothing is kept: the walk ends at the first
claim that the file does not bear out, having done work in proportion to what the file really holds.

Source of the layout and of the 64 bytes of a tensor's name: the GGUF specification, version 3 (2 differs in nothing
that is walked here).
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path

from calserve.package.fault import PackageError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 4096  # real files have some fifty
MAX_TENSORS = 1 << 17
# Of all arrays together, each of which costs the reader a few hundred bytes; Llama 3's vocabulary has 664,915.
MAX_ITEMS = 1 << 20
MAX_KEY_BYTES = 1 << 10
MAX_STRING_BYTES = 16 << 20  # the longest chat templates take some 100 kB
MAX_TENSOR_NAME_BYTES = 1 << 10
MAX_DIMENSIONS = 4  # ggml's own
LEAST_BITS = 1  # of a weight, in the smallest of formats
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # type -> bytes of one value


def check_head(path: Path) -> None:
    """Raise PackageError (one sentence) unless `path` is a GGUF whose header claims what the file can hold."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
            if magic != MAGIC:
                raise PackageError("not_gguf", f"{path} is not a GGUF file.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _Walk(path, data).walk()
    except OSError as error:
        raise PackageError("source_unreadable", f"{path} cannot be read: {error.strerror}.") from None


class _Walk:
    """at: the next byte. Each step checks that what it passes over is in the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size = path, data, len(data)
        self.at = len(MAGIC)
        self.items = 0

    def walk(self) -> None:
        version = self._number("<I")
        if version not in VERSIONS:
            raise self._wrong(f"its version is {version}, not {' or '.join(map(str, VERSIONS))}")
        tensors = self._within(self._number("<Q"), MAX_TENSORS, "tensors")
        keys = self._within(self._number("<Q"), MAX_KEYS, "keys")
        for _ in range(keys):
            self._string(MAX_KEY_BYTES, "the name of a key")
            self._value(self._number("<I"))
        for _ in range(tensors):
            self._tensor()

    def _value(self, kind: int) -> None:
        if kind == STRING:
            self._string(MAX_STRING_BYTES, "a text")
        elif kind == ARRAY:
            self._array()
        else:
            self._pass(self._size_of(kind))

    def _array(self) -> None:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == ARRAY:  # no key has one, and the reader would recurse as deep as the file says
            raise self._wrong("it nests an array in an array")
        self.items = self._within(self.items + count, MAX_ITEMS, "values in its arrays")
        if kind != STRING:
            self._pass(count * self._size_of(kind))
            return
        for _ in range(count):
            self._string(MAX_STRING_BYTES, "a text")

    def _tensor(self) -> None:
        self._string(MAX_TENSOR_NAME_BYTES, "the name of a tensor")
        dimensions = self._within(self._number("<I"), MAX_DIMENSIONS, "dimensions of a tensor")
        weights = prod(self._number("<Q") for _ in range(dimensions))
        self._within(weights, self.size * 8 // LEAST_BITS, "weights in a tensor")
        self._pass(4 + 8)  # its type and its place

    def _string(self, limit: int, what: str) -> None:
        self._pass(self._within(self._number("<Q"), limit, f"bytes in {what}"))

    def _size_of(self, kind: int) -> int:
        if kind not in SIZES:
            raise self._wrong(f"it holds a value of type {kind}, which there is not")
        return SIZES[kind]

    def _number(self, form: str) -> int:
        at = self.at
        self._pass(struct.calcsize(form))
        (value,) = struct.unpack_from(form, self.data, at)
        return int(value)

    def _pass(self, count: int) -> None:
        if count > self.size - self.at:
            raise PackageError(
                "gguf_truncated",
                f"{self.path} is a damaged or truncated GGUF (its header claims {count} bytes at byte {self.at}, and "
                f"the file has {self.size}).",
                self.size,
                self.at + count,
            )
        self.at += count

    def _within(self, given: int, limit: int, what: str) -> int:
        if given > limit:
            raise PackageError(
                "gguf_header",
                f"{self.path} is a damaged GGUF: its header claims {given} {what}, and at most {limit} can be.",
                limit,
                given,
            )
        return given

    def _wrong(self, what: str) -> PackageError:
        return PackageError("gguf_header", f"{self.path} is no GGUF that can be packed: {what}.")
