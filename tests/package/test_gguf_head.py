"""Headers of GGUF files that claim what they do not hold, written byte by byte after the specification."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from calserve.package import PackageError
from calserve.package.pack import gguf_head
from calserve.package.pack.gguf_head import check_head
from calserve.package.pack.gguf_source import open_gguf

UINT8, UINT32, STRING, ARRAY = 0, 4, 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def head(*parts: bytes, tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return text(b"a") + struct.pack("<IIQ", ARRAY, kind, count) + values


def tensor(*dimensions: int) -> bytes:
    count = len(dimensions)
    return text(b"t") + struct.pack(f"<I{count}QIQ", count, *dimensions, 0, 0)


GOOD = head(
    text(b"n") + struct.pack("<II", UINT32, 7),
    text(b"s") + struct.pack("<I", STRING) + text(b"word"),
    array(UINT8, 3, b"abc"),
    array(STRING, 2, text(b"x") + text(b"")),
    tensor(4, 2),
    tensors=1,
    keys=4,
)
NESTED = text(b"a") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 5000 + struct.pack("<IQ", UINT8, 0)
BAD = {
    "a billion numbers": (head(array(UINT32, 10**9), bytes(64), keys=1), "1000000000 values in its arrays"),
    "a billion texts": (head(array(STRING, 10**9), bytes(64), keys=1), "1000000000 values in its arrays"),
    "numbers beyond the end": (head(array(UINT32, 10**6), bytes(64), keys=1), "its header claims 4000000 bytes"),
    "texts beyond the end": (head(array(STRING, 10**6), bytes(64), keys=1), "its header claims 8 bytes"),
    "many arrays": (head(array(UINT8, 1 << 19, bytes(1 << 19)) * 3, keys=3), "values in its arrays"),
    "arrays in arrays": (head(NESTED, keys=1), "nests an array in an array"),
    "keys": (head(keys=10**9), "1000000000 keys"),
    "tensors": (head(tensors=10**9), "1000000000 tensors"),
    "a long key": (head(struct.pack("<Q", 1 << 63), keys=1), "bytes in the name of a key"),
    "a long text": (head(text(b"s") + struct.pack("<IQ", STRING, 1 << 62), keys=1), "bytes in a text"),
    "a text beyond the end": (head(text(b"s") + struct.pack("<IQ", STRING, 100), keys=1), "claims 100 bytes"),
    "a type": (head(text(b"s") + struct.pack("<I", 99), keys=1), "type 99"),
    "a type in an array": (head(array(99, 1), keys=1), "type 99"),
    "dimensions": (head(text(b"t") + struct.pack("<I", 10**9), tensors=1), "1000000000 dimensions of a tensor"),
    "weights": (head(tensor(1 << 32, 1 << 32), tensors=1), "18446744073709551616 weights in a tensor"),
    "a version": (head(version=99), "its version is 99"),
    "the other byte order": (head(version=3 << 24), "its version is 50331648"),
}


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(PackageError) as caught:
        check_head(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_head_of_every_kind_of_value_passes(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(GOOD)
    check_head(tmp_path / "x.gguf")


def test_head_of_a_whole_model_passes(tiny_gguf: Path) -> None:
    check_head(tiny_gguf)


@pytest.mark.parametrize("name", BAD)
def test_head_that_claims_too_much_is_a_sentence(tmp_path: Path, name: str) -> None:
    data, words = BAD[name]
    assert words in refusal(tmp_path / "x.gguf", data)


def test_head_cut_anywhere_is_a_sentence(tmp_path: Path) -> None:
    for size in range(4, len(GOOD)):
        assert "truncated GGUF" in refusal(tmp_path / "x.gguf", GOOD[:size])


def test_head_is_walked_before_the_library_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    def opened(*_: object) -> None:
        raise AssertionError("the library has opened it")

    monkeypatch.setattr(gguf, "GGUFReader", opened)
    for name in ("a billion numbers", "arrays in arrays"):
        (tmp_path / "x.gguf").write_bytes(BAD[name][0])
        with pytest.raises(PackageError, match="GGUF"):
            open_gguf(tmp_path / "x.gguf")


def test_head_bounds_hold_the_largest_vocabularies() -> None:
    """Llama 3 has 128,256 tokens with a text, a score and a type each, and 280,147 merges."""
    assert gguf_head.MAX_ITEMS > 3 * 128_256 + 280_147
