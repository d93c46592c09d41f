"""From what a person names to a Source: a file, a directory or a hub's `hf:ORG/NAME`.

Owns the choice alone: what each kind is stands in its own file.
"""

from __future__ import annotations

from pathlib import Path

from calserve.package.fault import PackageError
from calserve.package.hub import HUB_PREFIX
from calserve.package.pack.gguf_model import open_gguf_model
from calserve.package.pack.hf_source import open_huggingface
from calserve.package.pack.ir_source import open_ir
from calserve.package.pack.options import PackOptions
from calserve.package.pack.source import Source, check_tools, kind_of
from calserve.package.pull import pull
from calserve.progress import Progress


def open_source(named: Path | str, options: PackOptions, progress: Progress) -> Source:
    """Open and judge what `named` names; a hub's model is fetched into `options.cache` first.

    Raises PackageError: not to be had, of no kind that is packed, a tool for its kind missing.
    """
    name = str(named) if str(named).startswith(HUB_PREFIX) else ""
    path = pull(name, options.cache, progress) if name else Path(named)
    kind = kind_of(path)
    if kind == "openvino" and options.reference == "transformers":
        raise PackageError(
            "reference", f"{path} is a graph, which transformers cannot read; its reference is the graph itself."
        )
    check_tools(kind, options.reference)
    if kind == "gguf":
        return open_gguf_model(path, name, options.reference)
    return open_huggingface(path, name) if kind == "huggingface" else open_ir(path, name)
