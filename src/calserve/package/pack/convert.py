"""A GGUF to an OpenVINO graph, and a graph's weights to int8 or int4.

Owns the calls to openvino_genai and nncf. Must not know paging, packages or tokenizers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calserve.package.fault import PackageError
from calserve.stopping import holding_back

GRAPH_FILE = "openvino_model.xml"
# Less than this free means that the disk ran full; the converter itself only reports a stream error.
FULL_BYTES = 64 << 20

# What NNCF is asked for. int8: symmetric, one scale per output channel; asymmetric agrees no better with the source
# (0.957 against 0.958 of the reference's tokens) and carries zero points. int4: a fifth of the layers, those that lose
# most, stay int8, and data-free AWQ scales the rest: 0.81 of a 135M model's tokens agree, mean cosine 0.974, where
# all layers plainly rounded have 0.73 and 0.93. Where groups of 64 do not divide the channels of a matrix, those of 32
# or 16 do; a matrix of neither stays int8.
COMPRESSION: dict[str, dict[str, str | bool | int | float]] = {
    "int8": {"mode": "INT8_SYM"},
    "int4": {
        "mode": "INT4_ASYM",
        "group_size": 64,
        "ratio": 0.8,
        "awq": True,
        "group_size_fallback_mode": "adjust",
        "min_adjusted_group_size": 16,
    },
}
_FOUR_BITS = {"u4", "i4"}


def convert_gguf(gguf: Path) -> Path:
    """Convert the GGUF; the stateful graph is written beside it and its path returned.

    Raises PackageError when the converter refuses.
    """
    with holding_back():
        import openvino_genai

    try:
        with quiet_native_output():
            openvino_genai.LLMPipeline(str(gguf), "CPU", enable_save_ov_model=True)
    except RuntimeError as error:
        if shutil.disk_usage(gguf.parent).free < FULL_BYTES:
            raise PackageError("disk_full", f"The disk ran full while converting in {gguf.parent.parent}.") from None
        reason = str(error).strip().splitlines()[-1][:200]
        raise PackageError("convert", f"The converter refused the model: {reason.rstrip('.')}.") from None
    graph = gguf.parent / GRAPH_FILE
    if not graph.is_file():
        raise PackageError("convert", "The converter wrote no graph; is there room on the disk?")
    return graph


def compress(model: Any, weights: str) -> Any:
    """Weights to `weights`, a key of COMPRESSION. Raises PackageError with NNCF's reason."""
    with holding_back():  # a signal amid an import can leave its lock taken for good
        import nncf

    logging.getLogger("nncf").setLevel(logging.ERROR)
    settings: dict[str, Any] = dict(COMPRESSION[weights])
    mode = getattr(nncf.CompressWeightsMode, settings.pop("mode"))
    if "group_size_fallback_mode" in settings:
        settings["advanced_parameters"] = nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode(settings.pop("group_size_fallback_mode")),
            min_adjusted_group_size=settings.pop("min_adjusted_group_size"),
        )
    try:
        with quiet_native_output():
            compressed = nncf.compress_weights(model, mode=mode, **settings)
    except Exception as error:  # its errors share no base of their own
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise PackageError("compress", f"The weights cannot be compressed to {weights} ({reason}).") from None
    if weights == "int4" and not _has_four_bits(compressed):
        raise PackageError(
            "compress", "The weights cannot be compressed to int4: no matrix has channels in groups of 16 or more."
        )
    return compressed


def _has_four_bits(graph: Any) -> bool:
    """Of a matrix of any size: those of a tiny model count."""
    constants = (op for op in graph.get_ops() if op.get_type_name() == "Constant")
    return any(op.get_element_type().get_type_name() in _FOUR_BITS for op in constants)


@contextlib.contextmanager
def quiet_native_output() -> Iterator[None]:
    """Send what native libraries print on stdout to nowhere; our own report must be all there is."""
    sys.stdout.flush()
    saved = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)
