"""The `openvino` board: real models computed on this machine's cores (unverified: an Intel NPU or GPU).

Owns: the compiled step graph, the KV tensors, the memory of jobs. A chip is a set of cores. Must not know:
requests, tenants, text, scheduling. OpenVINO's exceptions never leave this folder: they become codes, and
their text becomes the detail of `health()`.
"""

from calserve.runtime.openvino.board import OpenVinoBoard

__all__ = ["OpenVinoBoard"]
