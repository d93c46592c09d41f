"""A model directory as the hubs lay it out: which of its files are used, and what the small ones say.

Owns the reading of `config.json`, `generation_config.json`, `tokenizer.json` and chat templates, all bounded, and the
refusal of links and of pickles. Must not know weights or graphs. Life of the main object: a ModelDirectory, made when
the directory was looked through once; only plain files directly in it are ever opened.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tokenizers import Tokenizer

from calserve.package.checksums import file_sha256
from calserve.package.decode import Undecodable, decode_json
from calserve.package.fault import PackageError
from calserve.package.pack.model_config import Family, ModelConfig, check_config, check_family

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
TOKENIZER_CONFIG, TEMPLATE, OLD_TEMPLATE = "tokenizer_config.json", "chat_template.jinja", "chat_template.json"
MAX_ENTRIES = 4096
MAX_JSON_BYTES = 4 << 20  # real ones are kilobytes
MAX_TOKENIZER_BYTES = 128 << 20  # the largest vocabularies take some 40 MB
MAX_TEMPLATE_BYTES = 1 << 20
# What torch reads by running it. The graph's own weights end in .bin too and are plain numbers.
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
GRAPH_WEIGHTS = "openvino_"

T = TypeVar("T")


class _Generation(msgspec.Struct, frozen=True):
    eos_token_id: int | tuple[int, ...] | None = None


class _Texts(msgspec.Struct, frozen=True):
    """The part of `tokenizer_config.json` and `chat_template.json` that is used."""

    chat_template: str | tuple[dict[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """files: plain files directly in `root`, by name, with their sizes. raw: `config.json` as it stands."""

    root: Path
    files: dict[str, int]
    config: ModelConfig
    raw: dict[str, Any]
    tokenizer: Tokenizer
    chat_template: str
    end_tokens: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.root.resolve().name

    def used(self, more: Iterable[str]) -> tuple[str, ...]:
        """Names of all that decides the package: the small files read here, and `more`."""
        small = (CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, OLD_TEMPLATE)
        return tuple(sorted({*(name for name in small if name in self.files), *more}))


def open_directory(root: Path) -> ModelDirectory:
    """Look through `root`. Raises PackageError: what it lacks, what it may not hold, or why it cannot be packed."""
    files = _plain_files(root)
    for name in (CONFIG, TOKENIZER):
        if name not in files:
            raise PackageError("source_incomplete", f"{root} has no {name}, which packing needs.")
    # Another family has other keys, so it is told before one is missed.
    check_family(read_json(root / CONFIG, Family).model_type, root)
    config = read_json(root / CONFIG, ModelConfig)
    check_config(config, root)
    tokenizer = _read_tokenizer(root / TOKENIZER)
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise PackageError("vocabulary", f"{root} has more tokens than its logits are wide.")
    raw = read_json(root / CONFIG, dict[str, Any])
    template = _chat_template(root, files)
    return ModelDirectory(root, files, config, raw, tokenizer, template, _end_tokens(root, files, config))


def directory_sha256(root: Path, names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """A hash of the named files, as sha256 over the sorted `sha256  name` lines, and each file's own."""
    digests = {name: file_sha256(root / name) for name in sorted(names)}
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    return hashlib.sha256(lines.encode()).hexdigest(), digests


def read_json(path: Path, kind: type[T]) -> T:
    """`path` as a `kind`, whose unknown keys are left alone; PackageError when it is too large or something else."""
    try:
        return decode_json(_read_bounded(path, MAX_JSON_BYTES), kind)
    except Undecodable as error:
        raise PackageError("config", f"{path} cannot be read: {error}.") from None


def _plain_files(root: Path) -> dict[str, int]:
    """Links are refused, because what they name may lie anywhere; folders inside are left alone."""
    files: dict[str, int] = {}
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    raise PackageError(
                        "source_link",
                        f"{root} holds {entry.name[:80]}, a symbolic link; pack takes plain files, such as "
                        "`calserve pull hf:ORG/NAME` fetches.",
                    )
                if stat.S_ISREG(status.st_mode):
                    files[entry.name] = status.st_size
                if len(files) > MAX_ENTRIES:
                    raise PackageError("source_files", f"{root} holds more than {MAX_ENTRIES} files.", MAX_ENTRIES)
    except OSError as error:
        raise PackageError("source_unreadable", f"{root} cannot be read: {error.strerror}.") from None
    for name in sorted(files):
        if name.endswith(PICKLES) and not name.startswith(GRAPH_WEIGHTS):
            raise PackageError(
                "source_pickle",
                f"not supported: {root} holds {name[:80]}, a file that runs code when torch reads it; pack takes "
                "safetensors only.",
            )
    return files


def _read_bounded(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise PackageError("source_unreadable", f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > limit:
        raise PackageError("source_size", f"{path} is larger than {limit} bytes.", limit)
    return data


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(_read_bounded(path, MAX_TOKENIZER_BYTES))
    except PackageError:
        raise
    except Exception as error:  # the library raises plain Exception for whatever it cannot read
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise PackageError("tokenizer", f"{path} is no tokenizer ({reason}).") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _chat_template(root: Path, files: dict[str, int]) -> str:
    """The directory's template; an empty one for a model that has none, which then serves completions only."""
    if TEMPLATE in files:
        try:
            return _read_bounded(root / TEMPLATE, MAX_TEMPLATE_BYTES).decode("utf-8")
        except UnicodeDecodeError:
            raise PackageError("chat_template", f"{root / TEMPLATE} is not UTF-8 text.") from None
    for name in (OLD_TEMPLATE, TOKENIZER_CONFIG):
        found = read_json(root / name, _Texts).chat_template if name in files else None
        if isinstance(found, str):
            return found
        if found is not None:
            named = {entry.get("name"): entry.get("template", "") for entry in found}
            return named.get("default", "")
    return ""


def _end_tokens(root: Path, files: dict[str, int], config: ModelConfig) -> tuple[int, ...]:
    """Those of `config.json` and `generation_config.json` together: either alone misses one for some families."""
    found: set[int] = set()
    generation = read_json(root / GENERATION, _Generation).eos_token_id if GENERATION in files else None
    for value in (config.eos_token_id, generation):
        found |= set() if value is None else {value} if isinstance(value, int) else set(value)
    if not found:
        raise PackageError("end_tokens", f"{root} does not say eos_token_id.")
    for token in found:
        if not 0 <= token < config.vocab_size:
            raise PackageError("end_tokens", f"{root} names an end token outside its vocabulary: {token}.")
    if len(found) > 64:
        raise PackageError("end_tokens", f"{root} names {len(found)} end tokens.", 64, len(found))
    return tuple(sorted(found))
