"""A Hugging Face directory of safetensors as a source: exported through optimum-intel, held against transformers.

Owns which of its files are loaded and the folder in which the loader sees those and nothing else. Must not import
torch, nor know graphs. Life of the main object: the directory is judged by its small files and its heads; `make` lays
links to the weights and a plain config into the scratch folder, and a process of its own does the rest.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np

from calserve.package.fault import PackageError
from calserve.package.pack.directory import CONFIG, ModelDirectory, directory_sha256, open_directory, read_json
from calserve.package.pack.model_config import FAMILIES, expected_tensors, for_the_loader
from calserve.package.pack.options import AGREEMENT_TOKENS
from calserve.package.pack.safetensors_head import HeldTensor, read_heads
from calserve.package.pack.source import IR_FILE, TOOLS, Job, Made, Source
from calserve.package.pack.torch_run import TorchJob, check_memory, run_torch

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.safetensors")
_TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
LOGIT_BYTES = 4


def open_huggingface(path: Path, name: str) -> Source:
    """Judge the directory at `path` without reading a weight. Raises PackageError."""
    directory = open_directory(path)
    files = _weight_files(directory)
    held = read_heads([path / file for file in files])
    used = _check_tensors(directory, held)
    parameters = sum(_count(tensor) for tensor in used.values())
    check_memory(parameters)
    weights = sum(tensor.n_bytes for tensor in held.values())
    config = directory.config
    names = directory.used((*files, INDEX) if len(files) > 1 else files)
    return Source(
        kind="huggingface",
        name=name or directory.name,
        architecture=config.model_type,
        trained_context=config.max_position_embeddings,
        logits_width=config.vocab_size,
        quantization=",".join(sorted({tensor.dtype for tensor in used.values()})),
        license="unknown",
        alias=name.rpartition("/")[2] or directory.name,
        tokenizer=directory.tokenizer,
        chat_template=directory.chat_template,
        end_tokens=directory.end_tokens,
        needed_bytes=2 * weights + AGREEMENT_TOKENS * config.vocab_size * LOGIT_BYTES,
        digest=partial(directory_sha256, path, names),
        make=partial(_make, directory, used),
        tools=TOOLS["huggingface"],
    )


def _weight_files(directory: ModelDirectory) -> tuple[str, ...]:
    if INDEX in directory.files:
        table = read_json(directory.root / INDEX, dict[str, object]).get("weight_map")
        files = sorted({str(value) for value in table.values()}) if isinstance(table, dict) else []
    else:
        files = [WEIGHTS]
    for file in files:
        if not _FILE_NAME.fullmatch(file):
            raise PackageError(
                "source_outside", f"{directory.root / INDEX} names {file[:80]!r}, which is no plain file."
            )
        if file not in directory.files:
            raise PackageError("source_incomplete", f"{directory.root} has no {file}; its weights must be safetensors.")
    if not files:
        raise PackageError("source_incomplete", f"{directory.root / INDEX} names no weights.")
    return tuple(files)


def _check_tensors(directory: ModelDirectory, held: dict[str, HeldTensor]) -> dict[str, HeldTensor]:
    """Those of `held` that the model is made of, each there and of the shape the config claims."""
    used = {}
    for name, shape in expected_tensors(directory.config):
        tensor = held.get(name)
        if tensor is None:
            raise PackageError(
                "source_tensor", f"{directory.root} holds no {name}, which its config.json claims.", name
            )
        if tensor.shape != shape:
            raise PackageError(
                "source_tensor",
                f"{directory.root}: {name} is {list(tensor.shape)}, where config.json claims {list(shape)}.",
                shape,
                tensor.shape,
            )
        used[name] = tensor
    return used


def _count(tensor: HeldTensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64))


def _make(directory: ModelDirectory, used: dict[str, HeldTensor], job: Job) -> Made:
    staged, exported, logits = job.scratch / "model", job.scratch / "export", job.scratch / "reference.npy"
    _stage(directory, used, staged)
    dtype = "float16" if job.options.weights == "fp16" else _own_dtype(used)
    family = FAMILIES[directory.config.model_type]
    work = TorchJob(
        model=str(staged), architecture=family, ids=job.ids, logits=str(logits), export=str(exported), dtype=dtype
    )
    run_torch(work, job.scratch, job.progress)
    reference = np.load(logits, allow_pickle=False)
    logits.unlink()
    return Made(exported / IR_FILE, reference)


def _own_dtype(used: dict[str, HeldTensor]) -> str:
    """What most of the weights are stored in."""
    sizes: dict[str, int] = {}
    for tensor in used.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + _count(tensor)
    return _TORCH_NAMES[max(sizes, key=lambda dtype: sizes[dtype])]


def _stage(directory: ModelDirectory, used: dict[str, HeldTensor], staged: Path) -> None:
    """A folder that holds a config of figures only, an index of our own, and links to the files that were judged."""
    staged.mkdir()
    config = for_the_loader(directory.raw, directory.config.model_type)
    (staged / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    for file in sorted({tensor.file for tensor in used.values()}):
        (staged / file).symlink_to((directory.root / file).resolve())
    table = {"metadata": {}, "weight_map": {name: tensor.file for name, tensor in used.items()}}
    if set(table["weight_map"].values()) != {WEIGHTS}:
        (staged / INDEX).write_text(json.dumps(table), encoding="utf-8")
