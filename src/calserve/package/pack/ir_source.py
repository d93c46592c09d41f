"""A ready OpenVINO IR directory as a source: its graph is read, judged and packed as it is, or compressed further.

Owns what a graph must be to be packed: a stateful decoder of standard operations. Must not know how it was exported.
Life of the main object: the directory is judged by its small files; the graph is read, and judged, in `make`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from calserve.package.fault import PackageError
from calserve.package.pack.directory import ModelDirectory, directory_sha256, open_directory
from calserve.package.pack.graph import SMALL_TYPES, matrix_types, read_graph
from calserve.package.pack.model_config import unsupported
from calserve.package.pack.source import IR_FILE, TOOLS, Job, Made, Source

IR_WEIGHTS = "openvino_model.bin"
MAX_XML_BYTES = 512 << 20  # a graph of a hundred layers takes some 10 MB, one of many experts a few hundred
INPUTS = frozenset({"input_ids", "attention_mask", "position_ids", "beam_idx"})


def open_ir(path: Path, name: str) -> Source:
    """Judge the directory at `path`. Raises PackageError."""
    directory = open_directory(path)
    for file in (IR_FILE, IR_WEIGHTS):
        if file not in directory.files:
            raise PackageError("source_incomplete", f"{path} has no {file}.")
    if directory.files[IR_FILE] > MAX_XML_BYTES:
        raise PackageError("source_size", f"{path / IR_FILE} is larger than {MAX_XML_BYTES} bytes.", MAX_XML_BYTES)
    config = directory.config
    return Source(
        kind="openvino",
        name=name or directory.name,
        architecture=config.model_type,
        trained_context=config.max_position_embeddings,
        logits_width=config.vocab_size,
        quantization="as in the graph",
        license="unknown",
        alias=name.rpartition("/")[2] or directory.name,
        tokenizer=directory.tokenizer,
        chat_template=directory.chat_template,
        end_tokens=directory.end_tokens,
        needed_bytes=directory.files[IR_FILE] + 2 * directory.files[IR_WEIGHTS],
        digest=partial(directory_sha256, path, directory.used((IR_FILE, IR_WEIGHTS))),
        make=partial(_make, directory),
        tools=TOOLS["openvino"],
    )


def _make(directory: ModelDirectory, job: Job) -> Made:
    """The graph where it lies, once it was found to be one that can be packed. Raises PackageError."""
    path = directory.root / IR_FILE
    with job.progress.step("Reading the graph"):
        graph = read_graph(path)
        _check_graph(graph, path, directory.config.vocab_size)
        _check_weights(matrix_types(graph), path, job.options.weights)
    return Made(path)


def _check_weights(held: set[str], path: Path, wanted: str) -> None:
    """Raise PackageError for a format that cannot be made of the weights as they are."""
    if wanted != "given" and held & SMALL_TYPES:
        raise PackageError("weights", f"{path} holds compressed weights; only --weights given packs them.")
    if wanted == "fp16" and "bf16" in held:
        raise PackageError("weights", f"{path} holds bfloat16 weights; pack them with --weights given, not fp16.")


def _check_graph(graph: Any, path: Path, vocabulary: int) -> None:
    names = {port.get_any_name() for port in graph.inputs}
    if names != INPUTS or not graph.get_sinks():
        raise unsupported(
            f"{path} is no stateful decoder: its inputs are {', '.join(sorted(names))[:200]}, not "
            f"{', '.join(sorted(INPUTS))}"
        )
    outputs = [port for port in graph.outputs if "logits" in port.get_names()]
    if len(outputs) != 1:
        raise unsupported(f"{path} has no output named logits")
    shape = outputs[0].get_partial_shape()
    width = shape[2].get_length() if len(shape) == 3 and shape[2].is_static else 0
    if width != vocabulary:
        raise PackageError(
            "vocabulary", f"{path}: logits are {width} wide, where config.json says {vocabulary}.", vocabulary, width
        )
