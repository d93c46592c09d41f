"""Making a package for the `openvino` board from a model file, without torch.

Owns the road GGUF -> F16 GGUF -> OpenVINO graph -> paged graph -> package directory, and the figures that say the
result is good. It alone in `package` may import openvino, openvino_genai, nncf and gguf. It knows the board's name
and graph form, but never opens a board.
"""

from calserve.package.pack.agreement import Agreement, agreement
from calserve.package.pack.build import PackReport, pack
from calserve.package.pack.options import PackOptions

__all__ = ["Agreement", "PackOptions", "PackReport", "agreement", "pack"]
