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

GRAPH_FILE = "openvino_model.xml"
# Less than this free means that the disk ran full; the converter itself only reports a stream error.
FULL_BYTES = 64 << 20

# What NNCF is asked for. int8: symmetric, one scale per output channel; asymmetric agrees no better with the source
# (0.957 against 0.958 of the reference's tokens) and carries zero points. int4: a fifth of the layers, those that lose
# most, stay int8, and data-free AWQ scales the rest: 0.81 of a 135M model's tokens agree, mean cosine 0.974, where
# all layers plainly rounded have 0.73 and 0.93.
COMPRESSION: dict[str, dict[str, str | bool | int | float]] = {
    "int8": {"mode": "INT8_SYM"},
    "int4": {"mode": "INT4_ASYM", "group_size": 64, "ratio": 0.8, "awq": True},
}


def convert_gguf(gguf: Path) -> Path:
    """Convert the GGUF; the stateful graph is written beside it and its path returned.

    Raises PackageError when the converter refuses.
    """
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
    """Weights to `weights`, a key of COMPRESSION."""
    import nncf

    logging.getLogger("nncf").setLevel(logging.ERROR)
    settings = dict(COMPRESSION[weights])
    mode = getattr(nncf.CompressWeightsMode, str(settings.pop("mode")))
    try:
        with quiet_native_output():
            return nncf.compress_weights(model, mode=mode, **settings)
    except (RuntimeError, nncf.errors.Error) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise PackageError("compress", f"The weights cannot be compressed to {weights} ({reason}).") from None


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
