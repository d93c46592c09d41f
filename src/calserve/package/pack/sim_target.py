"""A package for the simulated board, of any model whose geometry is known: everything of a package but weights.

Owns: the graphs, address plan, goldens and text files of such a package. Must not know: how the board runs it, or how
the command line names its options. A byte is a token in place of the model's own vocabulary, and what the model answers
means nothing; sizes, chips and times are those of the geometry and the board profile. Life of the main object: a
SimPackReport, made when the package stands and has been opened once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

import msgspec

from calserve import __version__
from calserve.package.address import ALIGNMENT, SectionKind, SectionNeed, lay_out, model_memory, tensor
from calserve.package.budget import Shape, Use, WeightFormat, budget, settled
from calserve.package.checksums import file_sha256, list_files
from calserve.package.fault import PackageError
from calserve.package.geometry import Geometry
from calserve.package.manifest import (
    NAME_PATTERN,
    SCHEMA,
    BatchEntry,
    ChipReserve,
    Compatibility,
    GoldenEntry,
    Goldens,
    GraphEntry,
    KvEntry,
    Manifest,
    MemoryMap,
    ModelEntry,
    Section,
    TensorEntry,
)
from calserve.package.pack.describe import write_json, write_manifest
from calserve.package.pack.target import new_directory
from calserve.package.plan import guard_bytes
from calserve.package.reader import open_package
from calserve.progress import Progress
from calserve.runtime.contract import GraphContract, TensorContract
from calserve.runtime.sim import oracle
from calserve.runtime.sim.figures import SimProfile
from calserve.runtime.sim.model import LOGIT_STEP
from calserve.runtime.sim.package import KEY_SETTING, PROFILE_SETTING, decode_graph, prefill_graph
from calserve.runtime.sim.profile import PROFILES, load_profile
from calserve.runtime.sim.serving import CHAT_TEMPLATE, EOS_TOKEN_IDS, VOCAB, tokenizer_json
from calserve.runtime.targets import Target

TARGET: Final[Target] = "sim"
RUNTIME: Final = "sim>=0.7.6"
PACKAGE_FILES: Final = {
    "memory": "memory.json",
    "compatibility": "compatibility.json",
    "provenance": "build-provenance.json",
}
FILES: Final = {"tokenizer": "tokenizer.json", "chat_template": "chat_template.jinja", "goldens": "goldens.json"}
# Whose graphs span the board, and whose fit a chip.
SPANNING_PROFILE, CHIP_PROFILE = "calculet-2chip", "assumed-lanes"
# Of one byte, of a whole block of 16, and across blocks.
GOLDEN_TEXTS: Final = ("W", "Water boils at 1", "The days of the week are Monday, ")
GOLDEN_TOKENS: Final = 16
MIN_CONTEXT: Final = 64


@dataclass(frozen=True, slots=True)
class SimOptions:
    """0, () and "" take what the geometry is compiled for, or the board profile's own.

    board_profile: the kind of simulated board, by name or file. chips: each graph spans. profiles: compiled batches,
    rising from 1; the last is the number of lanes. weights: only their size. alias: name it is served under.
    """

    board_profile: str = ""
    chips: int = 0
    profiles: tuple[int, ...] = ()
    context: int = 0
    weights: WeightFormat = "int8"
    alias: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True)
class SimPackReport:
    """What was made. reserved_bytes: on each chip."""

    target: Path
    hash: str
    total_bytes: int
    seconds: float
    reserved_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Job:
    """The choices settled. profile: the board's, with this model's batches, context and byte vocabulary; board_sha256:
    of the board's own."""

    name: str
    geometry: Geometry
    shape: Shape
    profile: SimProfile
    board_sha256: str
    graphs: tuple[GraphEntry, ...]

    @property
    def mask(self) -> int:
        return (1 << self.shape.chips) - 1


def pack_sim(geometry: Geometry, target: Path, options: SimOptions, progress: Progress) -> SimPackReport:
    """Write the package of `geometry` for a simulated board into the new directory `target`.

    Raises PackageError (one sentence) for options that do not fit the geometry or the board profile, an address plan
    beyond the chip's memory, and a target as `new_directory` has it; ProfileError for a board profile that cannot be.
    """
    begun = perf_counter()
    job = _settle(geometry, options)
    memory = _memory_map(job)
    with new_directory(target, options.force) as root, progress.step(f"Packing {job.name} without weights"):
        (root / FILES["tokenizer"]).write_text(tokenizer_json(), encoding="utf-8")
        (root / FILES["chat_template"]).write_text(CHAT_TEMPLATE, encoding="utf-8")
        write_json(root / FILES["goldens"], _goldens(job.name))
        write_json(root / PACKAGE_FILES["memory"], memory)
        needs = ("batch_lanes",) if job.shape.lanes > 1 else ()
        write_json(root / PACKAGE_FILES["compatibility"], Compatibility(TARGET, RUNTIME, (job.profile.name,), needs))
        write_manifest(root, Manifest(SCHEMA, TARGET, (_model_entry(job, memory, root),), dict(PACKAGE_FILES)))
        write_json(root / PACKAGE_FILES["provenance"], _provenance(job, options, root))
    package = open_package(target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    reserved = tuple(chip.bytes for chip in memory.chips)
    return SimPackReport(target, package.hash, size, perf_counter() - begun, reserved)


def is_shipped_profile(name: str) -> bool:
    return name in PROFILES


def board_profile_sha256(name_or_path: str) -> str:
    """Of the figures of a board profile. Raises ProfileError."""
    return load_profile(name_or_path).sha256()


def _settle(geometry: Geometry, options: SimOptions) -> _Job:
    if options.alias and not re.fullmatch(NAME_PATTERN, options.alias):
        raise PackageError("alias", f"{options.alias!r} cannot be a model's name: letters, digits, and ._/:- inside.")
    compiled = geometry.compiled
    spans = compiled is not None and compiled.chips > 1
    profile = load_profile(options.board_profile or (SPANNING_PROFILE if spans else CHIP_PROFILE))
    chips = options.chips or (compiled.chips if compiled else min(profile.session_chips))
    batches = options.profiles or profile.profiles
    if chips not in profile.session_chips:
        able = " or ".join(map(str, profile.session_chips))
        raise PackageError(
            "chips", f"A graph on board profile {profile.name} spans {able} chips, not {chips}.", able, chips
        )
    known = sorted(profile.timing.decode_ns)
    if list(batches) != sorted(set(batches)) or batches[0] != 1 or not set(batches) <= set(known):
        raise PackageError(
            "profiles",
            f"profiles must rise from 1 and be batches of board profile {profile.name} "
            f"({', '.join(map(str, known))}); got {', '.join(map(str, batches))}.",
            known,
            batches,
        )
    shape = settled(geometry, Shape(chips, options.context, batches[-1], options.weights))
    if shape.context < MIN_CONTEXT:
        raise PackageError(
            "context", f"the context must be at least {MIN_CONTEXT} tokens; got {shape.context}.", MIN_CONTEXT
        )
    board_sha256 = profile.sha256()
    profile = replace(
        profile, vocab=VOCAB, eos_token_ids=EOS_TOKEN_IDS, context=shape.context, profiles=batches, kv_lanes=0
    )
    contracts = (prefill_graph(profile), *(decode_graph(profile, batch) for batch in batches))
    mask = (1 << chips) - 1
    graphs = tuple(_graph_entry(contract, mask) for contract in contracts)
    return _Job(options.alias or geometry.name, geometry, shape, profile, board_sha256, graphs)


def _graph_entry(contract: GraphContract, mask: int) -> GraphEntry:
    profile, policy = contract.profile, contract.inactive_lane_policy
    return GraphEntry(
        name=contract.name,
        tasks=cast("Any", tuple(sorted(task.value for task in profile.tasks))),
        batch=BatchEntry(profile.batch, fixed=profile.batch_is_fixed),
        row_binding=cast("Any", profile.row_binding.value),
        kv_layout=cast("Any", contract.kv_layout.value),
        inactive_lane_policy=None if policy is None else cast("Any", policy.value),
        max_tokens=profile.max_tokens,
        max_row_tokens=profile.max_row_tokens,
        max_job_tokens=profile.max_job_tokens,
        min_chunk_tokens=profile.min_chunk_tokens,
        min_flat_tokens=contract.min_flat_tokens,
        logits_tile=contract.logits_tile,
        scratch_units=contract.scratch_units,
        csr_names=contract.csr_names,
        chip_mask=mask,
        expected_step_ns=contract.expected_step_ns,
        inputs=tuple(_tensor_entry(each) for each in contract.inputs.values()),
        outputs=tuple(_tensor_entry(each) for each in contract.outputs.values()),
    )


def _tensor_entry(contract: TensorContract) -> TensorEntry:
    return tensor(contract.name, contract.shape, contract.dtype, contract.sliceable)


def _kv_entry(job: _Job) -> KvEntry:
    """A unit is a lane, from its first token to the end of the context."""
    geometry = job.geometry
    return KvEntry(geometry.n_layers, geometry.n_kv_heads, geometry.head_dim, job.shape.context, geometry.kv_dtype)


def _memory_map(job: _Job) -> MemoryMap:
    """Raises PackageError where a chip of the board profile cannot hold it."""
    chips = job.shape.chips
    uses = budget(job.geometry, job.shape)
    weights = [_bytes(each, "weights") for each in uses]
    figures = model_memory(job.name, sum(weights), _kv_entry(job), job.shape.lanes, job.graphs, 0)
    first = uses[0]
    sizes: tuple[tuple[SectionKind, int], ...] = (
        ("kv", figures.kv_bytes // chips),
        ("code", _bytes(first, "code")),
        ("io", figures.io_bytes),
        ("metadata", _bytes(first, "metadata")),
    )
    needs = [SectionNeed(job.name, "weights", 1 << chip, size) for chip, size in enumerate(weights)]
    needs += [SectionNeed(job.name, kind, job.mask, size) for kind, size in sizes]
    workspace = _workspace(job, first, needs)
    sections, reserves = lay_out([*needs, SectionNeed(job.name, "workspace", job.mask, workspace)])
    dram, full = job.profile.dram_bytes, max(each.bytes for each in reserves)
    if full > dram:
        raise PackageError(
            "memory",
            f"{job.name} needs {full} bytes on a chip; board profile {job.profile.name} has {dram}.",
            dram,
            full,
        )
    guarded = tuple(ChipReserve(each.chip, each.bytes, min(guard_bytes(dram), dram - each.bytes)) for each in reserves)
    figures = msgspec.structs.replace(figures, workspace_bytes=workspace * chips)
    return MemoryMap("packer", (figures,), guarded, _named(sections))


def _workspace(job: _Job, uses: tuple[Use, ...], needs: list[SectionNeed]) -> int:
    """Of a reservation that is known as a whole, what the other sections leave of it; else the peak of prefill."""
    compiled = job.geometry.compiled
    as_compiled = compiled is not None and (compiled.chips, compiled.context, compiled.lanes) == (
        job.shape.chips,
        job.shape.context,
        job.shape.lanes,
    )
    if compiled is not None and as_compiled:
        _, reserves = lay_out(needs)
        end = max(each.bytes for each in reserves)
        left = min(compiled.reserved_bytes) // ALIGNMENT * ALIGNMENT - end
        if left > 0:
            return left
    return _bytes(uses, "workspace")


def _named(sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """A model's weights are another section on each chip; names tell them apart."""
    names = [section.name for section in sections]
    return tuple(
        msgspec.structs.replace(section, name=f"{section.name}.chip{section.chip_mask.bit_length() - 1}")
        if names.count(section.name) > 1
        else section
        for section in sections
    )


def _bytes(uses: tuple[Use, ...], name: str) -> int:
    size = next(use.byte_count for use in uses if use.name == name)
    if size is None:
        raise PackageError("geometry", f"the geometry does not say what a {name} section needs.")
    return size


def _goldens(name: str) -> Goldens:
    entries = []
    for text in GOLDEN_TEXTS:
        prompt = tuple(text.encode())
        output = tuple(oracle.greedy_tokens(prompt, GOLDEN_TOKENS, VOCAB, name))
        entries.append(GoldenEntry(text, prompt, output, (LOGIT_STEP,) * GOLDEN_TOKENS))
    return Goldens("exact", 0.0, tuple(entries))


def _model_entry(job: _Job, memory: MemoryMap, root: Path) -> ModelEntry:
    return ModelEntry(
        name=job.name,
        architecture=job.geometry.architecture,
        chip_mask=job.mask,
        pinned=False,
        vocab_size=VOCAB,
        context=job.shape.context,
        trained_context=job.geometry.context,
        lanes=job.shape.lanes,
        profiles=job.profile.profiles,
        numerics="exact",
        weights="none",
        weight_bytes=memory.models[0].weight_bytes,
        eos_token_ids=EOS_TOKEN_IDS,
        settings={KEY_SETTING: f"{oracle.model_key(job.name):016x}", PROFILE_SETTING: job.profile.name},
        kv=_kv_entry(job),
        tokenizer_sha256=file_sha256(root / FILES["tokenizer"]),
        chat_template_sha256=file_sha256(root / FILES["chat_template"]),
        graphs=job.graphs,
        files=dict(FILES),
    )


def _provenance(job: _Job, options: SimOptions, root: Path) -> dict[str, Any]:
    """How the package came to be, and every other file; nothing of the machine or the hour: same inputs, same text."""
    geometry, profile = job.geometry, job.profile
    batches = ",".join(map(str, profile.profiles))
    return {
        "command": [
            *("calserve", "pack", "--target", TARGET, "--geometry", geometry.name, "--weights", options.weights),
            *("--board-profile", profile.name, "--chips", str(job.shape.chips), "--profiles", batches),
            *("--context", str(job.shape.context), "--alias", job.name, "-o", "DIR"),
        ],
        "source": {
            "geometry": geometry.name,
            "sha256": geometry.sha256(),
            "board_profile_sha256": job.board_sha256,
            "figures": dict(geometry.sources),
            "vocabulary": f"{VOCAB} byte tokens in place of the model's {geometry.vocab_size}",
            "weights": f"none; their size as {options.weights}" if geometry.compiled is None else "none; as compiled",
        },
        "options": {
            "target": TARGET,
            "weights": options.weights,
            "board_profile": profile.name,
            "chips": job.shape.chips,
            "profiles": profile.profiles,
            "context": job.shape.context,
            "alias": job.name,
        },
        "tools": {"calserve": __version__},
        "outputs": {name: file_sha256(root / name) for name in list_files(root)},
    }
