"""What packing needs to know of a model, whatever form it comes in, and how its stateful graph is made.

Owns the common form of sources and the choice between them. Must not know how a package is laid out. Life of the main
object: a Source is opened and judged without reading weights; `make` is called once, in a scratch folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from calserve.package.fault import PackageError
from calserve.package.pack.loop import Logits
from calserve.package.pack.options import PackOptions
from calserve.progress import Progress

Kind: TypeAlias = Literal["gguf", "huggingface", "openvino"]
IR_FILE = "openvino_model.xml"

# Distributions whose versions decide what comes out; and the modules that must be there, with the extra that has them.
COMMON_TOOLS = ("openvino", "nncf", "tokenizers", "numpy")
TOOLS: dict[Kind, tuple[str, ...]] = {
    "gguf": ("openvino-genai", "gguf"),
    "huggingface": ("torch", "transformers", "optimum", "optimum-intel", "safetensors"),
    "openvino": (),
}
TORCH_TOOLS = ("torch", "transformers", "accelerate")  # what a comparison with transformers adds
_TORCH_MODULES = ("torch", "transformers", "safetensors")
_NEEDS: dict[Kind, tuple[tuple[str, ...], str]] = {
    "gguf": (("gguf", "nncf", "openvino_genai"), "pack-gguf"),
    "huggingface": (("nncf", *_TORCH_MODULES, "optimum", "optimum.intel"), "pack"),
    "openvino": (("nncf",), "pack-gguf"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """scratch: an empty folder, by its whole path, for all that is made on the way. ids: of the agreement's text."""

    scratch: Path
    ids: list[int]
    options: PackOptions
    progress: Progress


@dataclass(frozen=True, slots=True)
class Made:
    """graph: the stateful graph. reference: logits of the source itself; None: the graph is the reference."""

    graph: Path
    reference: Logits | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A source opened and judged.

    name: as in a command, without a machine's path. quantization: of its weights, for people. alias: name it is served
    under by default. needed_bytes: on disk, while packing. digest: hash of all that decides the package, and of each
    file where it is a directory; reads everything. make: the stateful graph and the reference.
    """

    kind: Kind
    name: str
    architecture: str
    trained_context: int
    logits_width: int
    quantization: str
    license: str
    alias: str
    tokenizer: Any
    chat_template: str
    end_tokens: tuple[int, ...]
    needed_bytes: int
    digest: Callable[[], tuple[str, dict[str, str]]]
    make: Callable[[Job], Made]
    tools: tuple[str, ...] = field(default=())


def kind_of(path: Path) -> Kind:
    """What `path` is, by what it holds. Raises PackageError."""
    if not path.is_dir():
        return "gguf"
    if (path / IR_FILE).exists():
        return "openvino"
    if (path / "config.json").exists():
        return "huggingface"
    raise PackageError(
        "source_kind",
        f"{path} is a directory with neither a config.json (Hugging Face) nor an {IR_FILE} (OpenVINO IR).",
    )


def check_tools(kind: Kind, reference: str) -> None:
    """Raise PackageError naming the extra when a tool for this kind of source is not installed."""
    modules, extra = _NEEDS[kind]
    if kind == "gguf" and reference == "transformers":
        modules, extra = (*modules, *_TORCH_MODULES, "accelerate"), "pack"
    missing = [name for name in modules if not _is_there(name)]
    if missing:
        raise PackageError(
            "pack_missing",
            f"Packing needs {', '.join(missing)} of the extra `{extra}`: pip install 'calserve[{extra}]'.",
        )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False
