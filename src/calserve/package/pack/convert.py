"""F16 GGUF to an OpenVINO graph, and its weights to int8.

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


def convert_f16(f16: Path) -> Path:
    """Convert the F16 GGUF; the stateful graph is written beside it and its path returned.

    Raises PackageError when the converter refuses.
    """
    import openvino_genai

    try:
        with quiet_native_output():
            openvino_genai.LLMPipeline(str(f16), "CPU", enable_save_ov_model=True)
    except RuntimeError as error:
        if shutil.disk_usage(f16.parent).free < FULL_BYTES:
            raise PackageError("disk_full", f"The disk ran full while converting in {f16.parent.parent}.") from None
        reason = str(error).strip().splitlines()[-1][:200]
        raise PackageError("convert", f"The converter refused the model: {reason.rstrip('.')}.") from None
    graph = f16.parent / GRAPH_FILE
    if not graph.is_file():
        raise PackageError("convert", "The converter wrote no graph; is there room on the disk?")
    return graph


def compress_int8(model: Any) -> Any:
    """Weights to int8, symmetric, one scale per output channel.

    Asymmetric agrees no better with the source (0.957 against 0.958 of the reference's tokens) and carries zero points.
    """
    import nncf

    logging.getLogger("nncf").setLevel(logging.ERROR)
    with quiet_native_output():
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)


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
