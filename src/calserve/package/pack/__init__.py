"""Making a package for the `openvino` board from a model: a GGUF, a Hugging Face directory, or an OpenVINO IR.

Owns the road source -> stateful graph -> paged graph -> package directory, and the figures that say the result is good.
It alone in `package` may import openvino, openvino_genai, nncf and gguf, and one process of its own (`torch_worker`)
torch. It knows the board's name and graph form, but never opens a board.
"""

from calserve.package.pack.agreement import Agreement, agreement
from calserve.package.pack.build import PackReport, pack
from calserve.package.pack.options import PackOptions
from calserve.package.pack.replay import ReplayReport, replay

__all__ = ["Agreement", "PackOptions", "PackReport", "ReplayReport", "agreement", "pack", "replay"]
