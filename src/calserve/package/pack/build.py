"""From a model file to a package directory: the order of the work, and nothing half done at the end.

Owns the temporary directory, the files' names and the rename that makes a package appear whole. Must not know how a
step is done. Life of the main object: a sibling directory `.NAME.packing-*` is filled, checked, listed, and becomes
the target in one rename; whatever stops the work before that removes it.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import yaml

from calserve import __version__
from calserve.package.checksums import file_sha256, write_checksums
from calserve.package.fault import PackageError
from calserve.package.manifest import (
    MANIFEST,
    SCHEMA,
    Compatibility,
    GoldenEntry,
    Goldens,
    Manifest,
)
from calserve.package.pack.agreement import Agreement, agreement, check_agreement
from calserve.package.pack.contract import GRAPH, graph_entry, kv_entry, kv_units, memory_plan
from calserve.package.pack.convert import compress_int8, convert_f16
from calserve.package.pack.gguf_source import GgufSource, open_gguf, write_f16
from calserve.package.pack.loop import PagedLoop, StatefulLoop, greedy
from calserve.package.pack.options import PackOptions, board_settings, check_options
from calserve.package.pack.paged import Geometry, to_paged
from calserve.package.pack.texts import AGREEMENT_TEXT, GOLDEN_PROMPTS
from calserve.package.pack.tokenizer import build_tokenizer
from calserve.package.reader import open_package
from calserve.progress import Progress

BOARD = "openvino"
RUNTIME_RANGE = ">=2026.4,<2026.5"  # one transformation is private; see pack/paged.py
GOLDEN_TOKENS = 16
AGREEMENT_TOKENS = 512  # positions compared; the built-in text has a little fewer for most vocabularies

# How far (in logits) a golden's best token must lead before another processor's rounding may not change it.
GOLDEN_TOLERANCE = {"exact": 0.05, "fast": 0.5}

FILES = {
    f"graph:{GRAPH}": f"graphs/{GRAPH}.xml",
    f"weights:{GRAPH}": f"graphs/{GRAPH}.bin",
    "tokenizer": "tokenizer.json",
    "chat_template": "chat_template.jinja",
    "goldens": "goldens.json",
    "memory": "memory.json",
    "compatibility": "compatibility.json",
    "provenance": "build-provenance.json",
}


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

    Raises PackageError (one sentence) for a source that cannot be packed, options that do not fit it, a target that
    is there already (unless `options.force`) or cannot be written, a full disk, and figures below the bound.
    """
    begun = perf_counter()
    model = open_gguf(source)
    check_options(options, model.trained_context)
    tokenizer = build_tokenizer(model.metadata)
    if tokenizer.get_vocab_size() > model.logits_width:
        raise PackageError("vocabulary", f"{source} has more tokens than its logits are wide.")
    template = _chat_template(model)
    with _new_directory(target, options.force) as root:
        tokenizer.save(str(root / FILES["tokenizer"]))
        (root / FILES["chat_template"]).write_text(template, encoding="utf-8")
        figures = _write_graph(model, tokenizer, root, options, progress)
    package = open_package(target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return PackReport(target, package.hash, size, perf_counter() - begun, figures)


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
        eos = _end_tokens(model)
        goldens = []
        for text in GOLDEN_PROMPTS:
            prompt = tokenizer.encode(text, add_special_tokens=False).ids[: options.context - GOLDEN_TOKENS]
            goldens.append(_golden(loop, text, prompt, eos))
            step.advance(1)
    _write_descriptions(model, root, options, geometry, tuple(goldens))
    _write_provenance(model, root, options, figures)
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


def _write_descriptions(
    model: GgufSource, root: Path, options: PackOptions, geometry: Geometry, goldens: tuple[GoldenEntry, ...]
) -> None:
    graph = graph_entry(options, model.logits_width)
    kv = kv_entry(geometry)
    weight_bytes = (root / FILES[f"weights:{GRAPH}"]).stat().st_size
    manifest = Manifest(
        schema=SCHEMA,
        model=options.alias or _default_alias(model),
        board=BOARD,
        architecture=model.architecture,
        vocab_size=model.logits_width,
        context=options.context,
        trained_context=model.trained_context,
        lanes=options.lanes,
        profiles=options.profiles,
        numerics="exact" if options.numerics == "exact" else "fast",
        weights="int8" if options.weights == "int8" else "fp16",
        weight_bytes=weight_bytes,
        eos_token_ids=_end_tokens(model),
        golden_tolerance=GOLDEN_TOLERANCE[options.numerics],
        settings=board_settings(options.weights, options.numerics),
        kv=kv,
        graphs=(graph,),
        files=FILES,
    )
    text = yaml.dump(msgspec.to_builtins(manifest), Dumper=_PlainDumper, sort_keys=False, width=110)
    (root / MANIFEST).write_text(text, encoding="utf-8")
    _write_json(root / FILES["goldens"], Goldens(goldens))
    _write_json(root / FILES["memory"], memory_plan(graph, kv, kv_units(options), weight_bytes))
    compatibility = Compatibility(BOARD, f"openvino{RUNTIME_RANGE}", ("CPU",), ("batch_lanes",))
    _write_json(root / FILES["compatibility"], compatibility)


class _PlainDumper(yaml.SafeDumper):
    """Never writes aliases: the reader refuses them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_provenance(model: GgufSource, root: Path, options: PackOptions, figures: Agreement) -> None:
    """How the package came to be, without anything of the machine or the hour: same inputs, same text."""
    tools = ("openvino", "openvino-genai", "nncf", "gguf", "tokenizers", "numpy")
    provenance = {
        "source": {
            "name": model.path.name,
            "sha256": file_sha256(model.path),
            "architecture": model.architecture,
            "quantization": model.quantization,
            "license": str(model.metadata.get("general.license", "unknown")),
        },
        "options": {
            "profiles": options.profiles,
            "context": options.context,
            "weights": options.weights,
            "numerics": options.numerics,
        },
        "tools": {"calserve": __version__, **{name: version(name) for name in tools}},
        "agreement": asdict(figures),
    }
    _write_json(root / FILES["provenance"], provenance)


def _write_json(path: Path, value: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _default_alias(model: GgufSource) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in model.name.lower()).strip("-._") or "model"


def _end_tokens(model: GgufSource) -> tuple[int, ...]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = {model.metadata[key] for key in keys if key in model.metadata}
    if not found:
        raise PackageError("gguf_key", f"{model.path} does not say tokenizer.ggml.eos_token_id.")
    return tuple(sorted(found))


def _chat_template(model: GgufSource) -> str:
    """The GGUF's template; an empty one for a model that has none, which then serves completions only."""
    template = model.metadata.get("tokenizer.chat_template", "")
    return template if isinstance(template, str) else ""


@contextmanager
def _new_directory(target: Path, force: bool) -> Iterator[Path]:
    """A directory beside `target` that becomes it at the end, or vanishes."""
    if target.is_symlink() or target.exists():
        if not force:
            raise PackageError("target_exists", f"{target} exists already; --force replaces it.")
        if target.is_symlink() or not (target / MANIFEST).is_file():
            raise PackageError("target_foreign", f"{target} is not a package, so --force does not replace it.")
    root = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix=f".{target.name}.packing-", dir=target.parent))
        root.chmod(0o755)
        yield root
        write_checksums(root)
        open_package(root)
        _put_in_place(root, target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PackageError("disk_full", f"There is no room left on the disk of {target.parent}.") from None
        raise PackageError("target_unwritable", f"{target} cannot be written: {error.strerror}.") from None
    finally:
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)


def _put_in_place(root: Path, target: Path) -> None:
    if not target.exists():
        root.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.replaced-", dir=target.parent))
    target.rename(old / target.name)
    try:
        root.rename(target)
    except OSError:
        (old / target.name).rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
