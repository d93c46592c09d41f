"""OpenVINO graphs in general: reading one of unknown origin, what its weights are, and names that do not change.

Owns the rule that only the standard operations are read. Must not know decoders or paging.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calserve.package.fault import PackageError

# A constant of fewer elements is no matrix: scales, shapes and positions are small.
MATRIX_ELEMENTS = 4096
SMALL_TYPES = frozenset({"i8", "u8", "i4", "u4", "nf4", "f8e4m3", "f8e5m2", "f4e2m1", "i2", "u2"})
# `opset1` to `opset16`, and what the core adds to a graph by itself.
_STANDARD = ("opset", "util")


def read_graph(path: Path) -> Any:
    """Read an IR with nothing but the standard operations. Raises PackageError (one sentence)."""
    import openvino as ov

    try:
        graph = ov.Core().read_model(path)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise PackageError("graph", f"{path} cannot be read as a graph: {lines[-1][:200].rstrip('.')}.") from None
    check_standard(graph, path)
    return graph


def check_standard(graph: Any, path: Path) -> None:
    """Raise PackageError where a graph holds an operation of somebody's own."""
    for op in graph.get_ordered_ops():
        info = op.get_type_info()
        if not str(info.version_id).startswith(_STANDARD):
            raise PackageError(
                "not_supported", f"not supported: {path} holds {info.name[:80]}, which is no standard operation."
            )


def matrix_types(graph: Any) -> set[str]:
    """What its matrices are stored in, as OpenVINO names it: f32, bf16, f16, i8, u4, ..."""
    return {
        str(op.get_element_type().get_type_name())
        for op in graph.get_ops()
        if op.get_type_name() == "Constant" and int(np.prod(list(op.get_output_shape(0)))) >= MATRIX_ELEMENTS
    }


def has_small_weights(graph: Any) -> bool:
    """Whether its matrices, or some, are stored in eight bits or fewer."""
    return bool(matrix_types(graph) & SMALL_TYPES)


def set_plain_names(graph: Any, name: str) -> None:
    """Name every operation by its place, in place.

    The converters number operations through the whole process, so that a second graph of the same source would
    differ from the first; names of inputs and outputs are tensors' and stay.
    """
    graph.set_friendly_name(name)
    for i, op in enumerate(graph.get_ordered_ops()):
        op.set_friendly_name(f"n{i}")
    for port in graph.inputs:
        port.get_node().set_friendly_name(port.get_any_name())
