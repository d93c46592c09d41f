"""From a model's source to a package directory: the order of the work.

Owns which step follows which and what is measured. Must not know how a step is done, what form a source has, nor how
the directory appears (`target`). Life of the main object: a PackReport, made when the package stands and has been
opened once.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from calserve.package.fault import PackageError
from calserve.package.manifest import GoldenEntry
from calserve.package.pack.agreement import Agreement, agreement, check_agreement
from calserve.package.pack.contract import GRAPH
from calserve.package.pack.convert import COMPRESSION, compress
from calserve.package.pack.describe import FILES, Packed, plain_alias, write_descriptions
from calserve.package.pack.graph import has_small_weights, matrix_types, read_graph, set_plain_names
from calserve.package.pack.loop import Logits, PagedLoop, StatefulLoop, check_cuts, greedy
from calserve.package.pack.open_source import open_source
from calserve.package.pack.options import AGREEMENT_TOKENS, PackOptions, board_settings, check_options
from calserve.package.pack.paged import Geometry, to_paged
from calserve.package.pack.provenance import write_provenance
from calserve.package.pack.source import Job, Made, Source
from calserve.package.pack.target import check_room, new_directory
from calserve.package.pack.texts import AGREEMENT_TEXT, GOLDEN_PROMPTS
from calserve.package.reader import open_package
from calserve.progress import Progress

GOLDEN_TOKENS = 16


@dataclass(frozen=True, slots=True)
class PackReport:
    """What was made: the package's hash, its size on disk, how long it took, and how close it is to its source."""

    target: Path
    hash: str
    total_bytes: int
    seconds: float
    agreement: Agreement


def pack(source: Path | str, target: Path, options: PackOptions, progress: Progress) -> PackReport:
    """Pack `source` into the new directory `target`.

    source: a GGUF file, a Hugging Face or OpenVINO IR directory, or hf:ORG/NAME of a model hub.
    Raises PackageError (one sentence) for a source that cannot be packed, options that do not fit it, tools
    that are not installed, a target that is there already (unless `options.force`) or cannot be written, a full
    disk, and figures below the bound.
    """
    return pack_source(open_source(source, options, progress), target, options, progress)


def pack_source(source: Source, target: Path, options: PackOptions, progress: Progress) -> PackReport:
    """As `pack`, for a source that is open."""
    begun = perf_counter()
    check_options(options, source.trained_context)
    check_room(target, source.needed_bytes)
    with new_directory(target, options.force) as root:
        source.tokenizer.save(str(root / FILES["tokenizer"]))
        (root / FILES["chat_template"]).write_text(source.chat_template, encoding="utf-8")
        figures = _write_graph(source, root, options, progress)
        with progress.step("Recording the source"):
            write_provenance(source, root, options.alias or plain_alias(source.alias), options, figures)
    package = open_package(target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return PackReport(target, package.hash, size, perf_counter() - begun, figures)


def _write_graph(source: Source, root: Path, options: PackOptions, progress: Progress) -> Agreement:
    """Everything that needs the graph: itself, figures, goldens, and the descriptions that hold numbers of it."""
    ids = source.tokenizer.encode(AGREEMENT_TEXT, add_special_tokens=False).ids
    ids = ids[: min(AGREEMENT_TOKENS, options.context)]
    with tempfile.TemporaryDirectory(prefix=".convert-", dir=root) as scratch:
        made = source.make(Job(Path(scratch).resolve(), ids, options, progress))
        with progress.step(f"Packing weights as {options.weights}"):
            geometry, is_small = _save_paged(made.graph, root / FILES[f"graph:{GRAPH}"], options)
        settings = board_settings(is_small, options.numerics)
        with progress.step("Comparing with the source"):
            loop = PagedLoop(root / FILES[f"graph:{GRAPH}"], geometry, settings, options.context)
            packed = loop.step(ids, 0, range(len(ids)))
            figures = agreement(packed, _reference(made, ids))
    progress.line(f"Agreement with the source, {options.weights} {options.numerics}:\n{figures.table()}")
    check_agreement(figures, options.weights, options.numerics, is_wide=not is_small)
    if options.numerics == "exact":
        check_cuts(loop, ids, packed)
    goldens = _goldens(source, loop, options, progress)
    write_descriptions(source, root, options, Packed(geometry, settings, goldens))
    return figures


def _reference(made: Made, ids: list[int]) -> Logits:
    return StatefulLoop(made.graph).logits(ids) if made.reference is None else made.reference


def _save_paged(stateful: Path, target: Path, options: PackOptions) -> tuple[Geometry, bool]:
    """Write the paged graph; its attention's geometry, and whether its weights take eight bits or fewer."""
    import openvino as ov

    graph = read_graph(stateful)
    if options.weights in COMPRESSION:
        graph = compress(graph, options.weights)
    is_small = has_small_weights(graph)
    geometry = to_paged(graph, exact=options.numerics == "exact")
    set_plain_names(graph, GRAPH)
    target.parent.mkdir()
    try:
        ov.save_model(graph, target, compress_to_fp16=options.weights == "fp16" and "f32" in matrix_types(graph))
    except RuntimeError as error:
        raise PackageError("write", f"{target} could not be written: {str(error).splitlines()[-1]}.") from None
    return geometry, is_small


def _goldens(source: Source, loop: PagedLoop, options: PackOptions, progress: Progress) -> tuple[GoldenEntry, ...]:
    goldens = []
    with progress.step("Computing goldens", len(GOLDEN_PROMPTS), "prompts") as step:
        for text in GOLDEN_PROMPTS:
            prompt = source.tokenizer.encode(text, add_special_tokens=False).ids[: options.context - GOLDEN_TOKENS]
            goldens.append(_golden(loop, text, prompt, source.end_tokens))
            step.advance(1)
    return tuple(goldens)


def _golden(loop: PagedLoop, text: str, prompt: list[int], eos: tuple[int, ...]) -> GoldenEntry:
    ids, margins = greedy(loop, prompt, GOLDEN_TOKENS, eos)
    return GoldenEntry(text, tuple(prompt), tuple(ids), tuple(margins))
