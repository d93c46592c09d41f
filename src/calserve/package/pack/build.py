"""From a model file to a package directory: the order of the work.

Owns which step follows which and what is measured. Must not know how a step is done, nor how the directory appears
(`target`). Life of the main object: a PackReport, made when the package stands and has been opened once.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from calserve.package.fault import PackageError
from calserve.package.manifest import GoldenEntry
from calserve.package.pack.agreement import Agreement, agreement, check_agreement
from calserve.package.pack.contract import GRAPH
from calserve.package.pack.convert import compress_int8, convert_f16
from calserve.package.pack.describe import FILES, chat_template, end_tokens, write_descriptions, write_provenance
from calserve.package.pack.gguf_source import GgufSource, open_gguf, write_f16
from calserve.package.pack.loop import PagedLoop, StatefulLoop, greedy
from calserve.package.pack.options import PackOptions, board_settings, check_options
from calserve.package.pack.paged import Geometry, to_paged
from calserve.package.pack.target import check_room, new_directory
from calserve.package.pack.texts import AGREEMENT_TEXT, GOLDEN_PROMPTS
from calserve.package.pack.tokenizer import build_tokenizer
from calserve.package.reader import open_package
from calserve.progress import Progress

GOLDEN_TOKENS = 16
AGREEMENT_TOKENS = 512  # positions compared; the built-in text has a little fewer for most vocabularies

HALF_BYTES = 2  # of a float16 weight
SCRATCH_COPIES = 2  # the F16 GGUF and the converter's graph lie side by side for a moment


@dataclass(frozen=True, slots=True)
class PackReport:
    """What was made: the package's hash, its size on disk, how long it took, and how close it is to its source."""

    target: Path
    hash: str
    total_bytes: int
    seconds: float
    agreement: Agreement


def pack(source: Path, target: Path, options: PackOptions, progress: Progress) -> PackReport:
    """Pack the GGUF at `source` into the new directory `target`.

    Raises PackageError (one sentence) for a source that cannot be packed, options that do not fit it, tools
    that are not installed, a target that is there already (unless `options.force`) or cannot be written, a full
    disk, and figures below the bound.
    """
    begun = perf_counter()
    _check_tools()
    model = open_gguf(source)
    check_options(options, model.trained_context)
    tokenizer = build_tokenizer(model.metadata)
    if tokenizer.get_vocab_size() > model.logits_width:
        raise PackageError("vocabulary", f"{source} has more tokens than its logits are wide.")
    template = chat_template(model)
    end_tokens(model)
    check_room(target, _bytes_needed(model))
    with new_directory(target, options.force) as root:
        tokenizer.save(str(root / FILES["tokenizer"]))
        (root / FILES["chat_template"]).write_text(template, encoding="utf-8")
        figures = _write_graph(model, tokenizer, root, options, progress)
    package = open_package(target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return PackReport(target, package.hash, size, perf_counter() - begun, figures)


def _check_tools() -> None:
    missing = [name for name in ("gguf", "nncf", "openvino_genai") if find_spec(name) is None]
    if missing:
        raise PackageError(
            "pack_missing", f"Packing needs {', '.join(missing)} of the extra `pack`: pip install 'calserve[pack]'."
        )


def _bytes_needed(model: GgufSource) -> int:
    """The converter does not survive a full disk, so there must be room for all it will write."""
    weights = sum(int(tensor.n_elements) for tensor in model.reader.tensors)
    return weights * HALF_BYTES * (SCRATCH_COPIES + 1)


def _write_graph(model: GgufSource, tokenizer: Any, root: Path, options: PackOptions, progress: Progress) -> Agreement:
    """Everything that needs the graph: itself, figures, goldens, and the descriptions that hold numbers of it."""
    with tempfile.TemporaryDirectory(prefix=".convert-", dir=root) as scratch:
        f16 = Path(scratch) / "f16.gguf"
        write_f16(model, f16, progress)
        with progress.step("Converting to a graph"):
            stateful = convert_f16(f16)
        f16.unlink()
        with progress.step(f"Packing weights as {options.weights}"):
            geometry = _save_paged(stateful, root / FILES[f"graph:{GRAPH}"], options)
        settings = board_settings(options.weights, options.numerics)
        with progress.step("Comparing with the source"):
            loop = PagedLoop(root / FILES[f"graph:{GRAPH}"], geometry, settings, options.context)
            ids = tokenizer.encode(AGREEMENT_TEXT, add_special_tokens=False).ids
            ids = ids[: min(AGREEMENT_TOKENS, options.context)]
            packed = loop.step(ids, 0, range(len(ids)))
            figures = agreement(packed, StatefulLoop(stateful).logits(ids))
    progress.line(f"Agreement with the source, {options.weights} {options.numerics}:\n{figures.table()}")
    check_agreement(figures, options.weights, options.numerics)
    with progress.step("Computing goldens", len(GOLDEN_PROMPTS), "prompts") as step:
        eos = end_tokens(model)
        goldens = []
        for text in GOLDEN_PROMPTS:
            prompt = tokenizer.encode(text, add_special_tokens=False).ids[: options.context - GOLDEN_TOKENS]
            goldens.append(_golden(loop, text, prompt, eos))
            step.advance(1)
    write_descriptions(model, root, options, geometry, tuple(goldens))
    write_provenance(model, root, options, figures)
    return figures


def _save_paged(stateful: Path, target: Path, options: PackOptions) -> Geometry:
    import openvino as ov

    graph = ov.Core().read_model(stateful)
    if options.weights == "int8":
        graph = compress_int8(graph)
    geometry = to_paged(graph, exact=options.numerics == "exact")
    target.parent.mkdir()
    try:
        ov.save_model(graph, target, compress_to_fp16=False)
    except RuntimeError as error:
        raise PackageError("write", f"{target} could not be written: {str(error).splitlines()[-1]}.") from None
    return geometry


def _golden(loop: PagedLoop, text: str, prompt: list[int], eos: tuple[int, ...]) -> GoldenEntry:
    ids, margins = greedy(loop, prompt, GOLDEN_TOKENS, eos)
    return GoldenEntry(text, tuple(prompt), tuple(ids), tuple(margins))
