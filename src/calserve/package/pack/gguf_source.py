"""A GGUF file, opened and judged: what it is, whether it is whole, and its weights as float16.

Owns everything that knows GGUF's keys and tensor names. Must not know OpenVINO. Life of the main object: `open_gguf`
maps the file and checks it; `write_f16` streams it out tensor by tensor; the map goes with the object.

Why float16: the converter's own reader of 4-bit files rounds their real-valued zero points to integers, which ruins
some models; dequantized first, the conversion is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calserve.package.fault import PackageError
from calserve.package.pack.gguf_head import check_head
from calserve.progress import Progress

# The families the converter turns into a graph; others fail inside it or, worse, come out wrong.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
_F16_FILE_TYPE = 1  # GGUF's `general.file_type` for "mostly float16"
_NOT_CARRIED = ("general.architecture", "general.file_type", "general.quantization_version")


@dataclass(frozen=True)
class GgufSource:
    """An opened GGUF. reader: the `gguf.GGUFReader`. metadata: every key but the file's own counters."""

    path: Path
    reader: Any
    metadata: dict[str, Any]

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def name(self) -> str:
        return str(self.metadata.get("general.basename") or self.metadata.get("general.name") or self.path.stem)

    @property
    def trained_context(self) -> int:
        return self.count("context_length")

    def count(self, key: str) -> int:
        """An integer of the architecture's own section; PackageError when the file lacks it."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if not isinstance(value, int) or value < 1:
            raise PackageError("gguf_key", f"{self.path} does not say {self.architecture}.{key}.")
        return value

    @property
    def logits_width(self) -> int:
        """Rows of the embedding, which is how wide the logits come out (the tokenizer may be smaller)."""
        for tensor in self.reader.tensors:
            if tensor.name == "token_embd.weight":
                return int(tensor.shape[1])
        raise PackageError("gguf_tensor", f"{self.path} has no token_embd.weight.")

    @property
    def quantization(self) -> str:
        """The tensor types the file holds, most frequent first, as one word list."""
        names = [tensor.tensor_type.name for tensor in self.reader.tensors]
        return ",".join(sorted(set(names), key=lambda name: (-names.count(name), name)))


def open_gguf(path: Path) -> GgufSource:
    """Map and check a GGUF. Raises PackageError: not a GGUF, truncated, or a family that cannot be packed."""
    check_head(path)
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path, "r")
        metadata = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        for tensor in reader.tensors:
            if tensor.data.nbytes != tensor.n_bytes:
                raise ValueError(f"tensor {tensor.name} is short")
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, TypeError, MemoryError) as error:
        raise PackageError("gguf_truncated", f"{path} is a damaged or truncated GGUF ({error}).") from None
    source = GgufSource(path, reader, metadata)
    _check_family(source)
    return source


def _check_family(source: GgufSource) -> None:
    given = str(source.metadata.get("general.architecture", "unknown"))
    supported = ", ".join(ARCHITECTURES)
    if given not in ARCHITECTURES:
        raise PackageError(
            "architecture",
            f"not supported: {source.path} is of the {given} family; packing supports {supported}.",
            supported,
            given,
        )
    names = {tensor.name for tensor in source.reader.tensors}
    scaling = source.metadata.get(f"{given}.rope.scaling.type", "none")
    experts = source.metadata.get(f"{given}.expert_count", 0)
    # The converter reads neither: its graph would be wrong without a word.
    if scaling != "none" or "rope_freqs.weight" in names:
        raise PackageError("rope_scaling", f"not supported: {source.path} scales its rotary positions.")
    if experts:
        raise PackageError("experts", f"not supported: {source.path} is a mixture of {experts} experts.")


def write_f16(source: GgufSource, target: Path, progress: Progress) -> None:
    """Write `source` with every matrix as float16, one tensor in memory at a time.

    Raises PackageError for a quantization that cannot be undone and for weights beyond float16's range.
    """
    import gguf

    writer = gguf.GGUFWriter(target, source.architecture)
    for key, field in source.reader.fields.items():
        if key.startswith("GGUF.") or key in _NOT_CARRIED:
            continue
        value = source.metadata[key]
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(key, value, field.types[0], sub_type=field.types[-1])
        else:
            writer.add_key_value(key, value, field.types[0])
    writer.add_file_type(_F16_FILE_TYPE)
    tensors = source.reader.tensors
    for tensor in tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        dtype = np.dtype(np.float32 if _keeps_f32(tensor) else np.float16)
        writer.add_tensor_info(tensor.name, shape, dtype, int(np.prod(shape)) * dtype.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    total = sum(int(tensor.n_elements) for tensor in tensors)
    with progress.step("Reading weights", total, "weights") as step:
        for tensor in tensors:
            writer.write_tensor_data(_as_f16(source, tensor))
            step.advance(int(tensor.n_elements))
    writer.close()


def _keeps_f32(tensor: Any) -> bool:
    return bool(tensor.tensor_type.name == "F32" and len(tensor.shape) == 1)


def _as_f16(source: GgufSource, tensor: Any) -> np.ndarray[Any, Any]:
    from gguf.quants import dequantize

    if _keeps_f32(tensor):
        return np.asarray(tensor.data)
    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except (NotImplementedError, ValueError) as error:
        name = tensor.tensor_type.name
        raise PackageError("quantization", f"{source.path}: {name} cannot be dequantized ({error}).") from None
    with np.errstate(over="ignore"):
        half = np.asarray(values, dtype=np.float16)
    if not np.isfinite(half).all():
        raise PackageError("weight_range", f"{source.path}: {tensor.name} holds values beyond float16's range.")
    return half.reshape([int(n) for n in reversed(tensor.shape)])
