"""A GGUF file as a source: what the package needs to know of it, and its way to a stateful graph.

Owns the meaning of GGUF's keys for a package. Must not know how tensors are read (`gguf_source`) or graphs converted.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from calserve.package.checksums import file_sha256
from calserve.package.fault import PackageError
from calserve.package.pack.convert import convert_gguf
from calserve.package.pack.gguf_source import GgufSource, open_gguf, write_f16
from calserve.package.pack.loop import Logits, StatefulLoop
from calserve.package.pack.model_config import FAMILIES
from calserve.package.pack.source import TOOLS, TORCH_TOOLS, Job, Made, Source
from calserve.package.pack.tokenizer import build_tokenizer
from calserve.package.pack.torch_run import TorchJob, check_memory, run_torch

HALF_BYTES = 2  # of a float16 weight
SCRATCH_COPIES = 2  # the F16 GGUF and the converter's graph lie side by side for a moment


def open_gguf_model(path: Path, name: str, reference: str) -> Source:
    """Judge the GGUF at `path` without reading a weight. Raises PackageError."""
    model = open_gguf(path)
    weights = sum(int(tensor.n_elements) for tensor in model.reader.tensors)
    is_held_against_torch = reference == "transformers"
    if is_held_against_torch:
        check_memory(weights)
    tokenizer = build_tokenizer(model.metadata)
    if tokenizer.get_vocab_size() > model.logits_width:
        raise PackageError("vocabulary", f"{path} has more tokens than its logits are wide.")
    return Source(
        kind="gguf",
        name=name or path.name,
        architecture=model.architecture,
        trained_context=model.trained_context,
        logits_width=model.logits_width,
        quantization=model.quantization,
        license=str(model.metadata.get("general.license", "unknown")),
        alias=model.name,
        tokenizer=tokenizer,
        chat_template=chat_template(model),
        end_tokens=end_tokens(model),
        # The converter does not survive a full disk, so there must be room for all it will write.
        needed_bytes=weights * HALF_BYTES * (SCRATCH_COPIES + 1),
        digest=lambda: (file_sha256(path), {}),
        make=partial(_make, model),
        tools=TOOLS["gguf"] + (TORCH_TOOLS if is_held_against_torch else ()),
    )


def _make(model: GgufSource, job: Job) -> Made:
    """The graph of the dequantized weights; for `given` the converter's own reading, held against that graph."""
    f16 = job.scratch / "f16.gguf"
    write_f16(model, f16, job.progress)
    reference = _torch_logits(model, f16, job) if job.options.reference == "transformers" else None
    with job.progress.step("Converting to a graph"):
        graph = convert_gguf(f16)
    f16.unlink()
    if job.options.weights != "given":
        return Made(graph, reference)
    if reference is None:
        reference = StatefulLoop(graph).logits(job.ids)
    graph.unlink()
    as_given = job.scratch / "given"
    as_given.mkdir()
    with job.progress.step("Converting the weights as given"):
        (as_given / "given.gguf").symlink_to(model.path.resolve())
        return Made(convert_gguf(as_given / "given.gguf"), reference)


def _torch_logits(model: GgufSource, f16: Path, job: Job) -> Logits:
    logits = job.scratch / "reference.npy"
    family = FAMILIES[model.architecture]
    work = TorchJob(model=str(f16.parent), architecture=family, ids=job.ids, gguf=f16.name, logits=str(logits))
    run_torch(work, job.scratch, job.progress)
    found: Logits = np.load(logits, allow_pickle=False)
    logits.unlink()
    return found


def end_tokens(model: GgufSource) -> tuple[int, ...]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = {model.metadata[key] for key in keys if key in model.metadata}
    if not found:
        raise PackageError("gguf_key", f"{model.path} does not say tokenizer.ggml.eos_token_id.")
    for token in found:
        if not isinstance(token, int) or not 0 <= token < model.logits_width:
            raise PackageError("gguf_key", f"{model.path} names an end token outside its vocabulary: {token}.")
    return tuple(sorted(found))


def chat_template(model: GgufSource) -> str:
    """The GGUF's template; an empty one for a model that has none, which then serves completions only."""
    template = model.metadata.get("tokenizer.chat_template", "")
    return template if isinstance(template, str) else ""
