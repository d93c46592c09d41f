"""The IR a package was made from, for the peer that wants it stateful: same source, same weights, made once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from calserve.package.pack.convert import COMPRESSION, compress, convert_gguf
from calserve.package.pack.gguf_source import open_gguf, write_f16
from calserve.progress import Progress
from calserve.runtime.contract import BoardPackage

GRAPH_FILE = "openvino_model.xml"


def peer_ir(package: BoardPackage, source: Path, cache: Path, progress: Progress) -> Path:
    """Directory with graph, tokenizer and detokenizer for `package`'s weights; kept under `cache`."""
    target = cache / f"{source.stem}-{package.weights}"
    if (target / GRAPH_FILE).is_file():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ir-", dir=cache) as scratch:
        made = Path(scratch) / "ir"
        made.mkdir()
        f16 = made / "f16.gguf"
        write_f16(open_gguf(source), f16, progress)
        with progress.step("converting for the peer"):
            graph = convert_gguf(f16)
            f16.unlink()
            if package.weights in COMPRESSION:
                _compress_in_place(graph, package.weights)
        made.rename(target)
    return target


def _compress_in_place(graph: Path, weights: str) -> None:
    import openvino as ov

    model = compress(ov.Core().read_model(graph), weights)
    packed = graph.with_name("compressed.xml")
    ov.save_model(model, packed, compress_to_fp16=False)
    del model
    packed.rename(graph)
    packed.with_suffix(".bin").rename(graph.with_suffix(".bin"))
