"""Gate D, figures: what each model takes, by hand, and against its sections.

Owns KV arithmetic (seed 004, section 8.1) and the figures of `memory.json`. Must not know addresses (`sections`).
"""

from __future__ import annotations

from calserve.package.address import WRITABLE, chips_of, job_io_bytes, kv_unit_bytes
from calserve.package.gates.finding import Findings, Place
from calserve.package.gates.sections import check_sections
from calserve.package.gates.work import Work
from calserve.package.manifest import MANIFEST, GraphEntry, Manifest, ModelEntry, ModelMemory, Section
from calserve.package.tree import PackageTree, graph_roles
from calserve.runtime.targets import TARGETS


def check_memory(work: Work, findings: Findings) -> None:
    tree = work.checked_tree()
    name = tree.manifest.files["memory"]
    models = {model.name: model for model in tree.manifest.models}
    listed = [entry.model for entry in tree.memory.models]
    if sorted(listed) != sorted(models):
        findings.add(
            "D01", f"{name} has figures for {', '.join(listed)}, and the models are {', '.join(models)}.",
            Place(file=name), list(models), listed,
        )  # fmt: skip
        return
    _check_plan(tree, name, findings)
    _check_together(tree.manifest, findings)
    for entry in tree.memory.models:
        model = models[entry.model]
        at = Place(file=name, model=model.name)
        _check_figures(model, entry, at, findings)
        _check_pool(model, entry, at, findings)
        _check_scratch(model, entry, findings)
        _check_weight_files(work, tree.manifest, model, findings)
        for graph in model.graphs:
            _check_graph_mask(model, graph, findings)
            _check_reach(model, entry, graph, findings)
    if tree.memory.plan != "board" and not findings.has_failed:
        check_sections(tree, name, findings)
        for entry in tree.memory.models:
            _check_sections_hold(entry, tree.memory.sections, name, findings)


def _check_plan(tree: PackageTree, name: str, findings: Findings) -> None:
    memory, at = tree.memory, Place(file=name)
    if (memory.plan == "board") == bool(memory.sections or memory.chips):
        given = f"{len(memory.sections)} sections on {len(memory.chips)} chips"
        findings.add("D08", f"The plan is the {memory.plan}'s, and {name} names {given}.", at, memory.plan, given)
    is_ours = TARGETS[tree.manifest.target].is_planned_here
    if memory.plan == ("vendor" if is_ours else "packer"):
        maker = "this packer" if is_ours else "the vendor's compiler"
        findings.add(
            "D09", f"The plan is the {memory.plan}'s; for target {tree.manifest.target} it is made by {maker}.", at
        )


def _check_together(manifest: Manifest, findings: Findings) -> None:
    """Several models: each on chips of its own."""
    if len(manifest.models) == 1:
        return
    taken = 0
    for model in manifest.models:
        at = Place(file=MANIFEST, model=model.name)
        if model.chip_mask & taken:
            chips = ", ".join(map(str, chips_of(model.chip_mask & taken)))
            findings.add("D22", f"Model {model.name} is on chip {chips}, as another model of the package is.", at)
        taken |= model.chip_mask
        if not model.pinned:
            findings.add("D23", f"Model {model.name} is one of several and is not pinned to its chips.", at)


def _check_figures(model: ModelEntry, entry: ModelMemory, at: Place, findings: Findings) -> None:
    kv = model.kv
    unit, pool = kv_unit_bytes(kv), entry.kv_units * entry.kv_unit_bytes
    io = job_io_bytes(model.graphs)
    shape = f"2 x {kv.n_layers} x {kv.n_kv_heads} x {kv.head_dim} x {kv.unit_tokens} x {kv.dtype}"
    for rule, what, right, given in (
        ("D02", "weights", model.weight_bytes, entry.weight_bytes),
        ("D03", f"a KV unit ({shape})", unit, entry.kv_unit_bytes),
        ("D04", "the KV pool", pool, entry.kv_bytes),
        ("D07", "I/O", io, entry.io_bytes),
    ):
        if right != given:
            findings.add(
                rule, f"Model {model.name}: {what} takes {right} bytes, and {at.file} says {given}.", at, right, given
            )


def _check_pool(model: ModelEntry, entry: ModelMemory, at: Place, findings: Findings) -> None:
    unit = model.kv.unit_tokens
    is_lanes = any(graph.kv_layout == "lanes" for graph in model.graphs)
    one = -(-model.context // unit)
    least = model.lanes if is_lanes else one
    if is_lanes and unit < model.context:
        findings.add(
            "D05", f"Model {model.name}: a lane's unit of {unit} tokens does not hold the context {model.context}.",
            at, model.context, unit,
        )  # fmt: skip
    elif entry.kv_units < least:
        findings.add(
            "D05", f"Model {model.name}: {entry.kv_units} KV units of {unit} tokens are fewer than the {least} that "
            f"{'its lanes' if is_lanes else 'one whole context'} needs.", at, least, entry.kv_units,
        )  # fmt: skip
    elif entry.kv_units < one * model.lanes:
        findings.add(
            "D06", f"Model {model.name}: {entry.kv_units} KV units hold the whole context for fewer than its "
            f"{model.lanes} lanes.", at, one * model.lanes, entry.kv_units,
        )  # fmt: skip


def _check_reach(model: ModelEntry, entry: ModelMemory, graph: GraphEntry, findings: Findings) -> None:
    """A unit holds a lane; a paged sequence may take every unit of the pool. (A pool below the context is D05.)"""
    unit = model.kv.unit_tokens
    held = unit if graph.kv_layout == "lanes" else unit * entry.kv_units
    most = max(held, model.context)
    if graph.max_tokens > most:
        where = "a lane" if graph.kv_layout == "lanes" else "the pool"
        findings.add(
            "D28", f"Graph {graph.name} of {model.name} addresses {graph.max_tokens} tokens, and {where} holds {most}.",
            Place(file=MANIFEST, model=model.name, graph=graph.name), most, graph.max_tokens,
        )  # fmt: skip


def _check_scratch(model: ModelEntry, entry: ModelMemory, findings: Findings) -> None:
    for graph in model.graphs:
        units = graph.scratch_units
        at = Place(file=MANIFEST, model=model.name, graph=graph.name)
        whose = f"Graph {graph.name} of {model.name}"
        if len(set(units)) != len(units):
            findings.add("D25", f"{whose} names a scratch unit twice.", at)
        elif any(unit < entry.kv_units for unit in units):
            wrong = min(units)
            findings.add(
                "D25",
                f"{whose}: scratch unit {wrong} is one of the pool's {entry.kv_units}.",
                at,
                entry.kv_units,
                wrong,
            )
        elif graph.min_flat_tokens > 1 and not units:
            findings.add("D25", f"{whose} pads single tokens and has no scratch unit for them.", at)


def _check_weight_files(work: Work, manifest: Manifest, model: ModelEntry, findings: Findings) -> None:
    if not TARGETS[manifest.target].is_planned_here:
        return
    names = {model.files[role] for role in graph_roles(manifest, model) if role.startswith("weights:")}
    held = sum(work.checked_files().sizes[name] for name in names)
    if names and held != model.weight_bytes:
        findings.add(
            "D24", f"Model {model.name}: its weight files hold {held} bytes, and the manifest says "
            f"{model.weight_bytes}; one was cut or replaced.", Place(file=min(names), model=model.name),
            model.weight_bytes, held,
        )  # fmt: skip


def _check_graph_mask(model: ModelEntry, graph: GraphEntry, findings: Findings) -> None:
    if graph.chip_mask & ~model.chip_mask:
        findings.add(
            "D13", f"Graph {graph.name} of {model.name} runs on chips {list(chips_of(graph.chip_mask))}, and the model "
            f"has {list(chips_of(model.chip_mask))}.", Place(file=MANIFEST, model=model.name, graph=graph.name),
            model.chip_mask, graph.chip_mask,
        )  # fmt: skip


def _check_sections_hold(entry: ModelMemory, sections: tuple[Section, ...], name: str, findings: Findings) -> None:
    """Sections of a kind, over all their chips, against the figure they are for."""
    at = Place(file=name, model=entry.model)
    figures = {
        "weights": entry.weight_bytes,
        "kv": entry.kv_bytes,
        "io": entry.io_bytes,
        "workspace": entry.workspace_bytes or 0,
    }
    for kind, needed in figures.items():
        of_kind = [s for s in sections if s.model == entry.model and s.kind == kind]
        held = sum(section.bytes * section.chip_mask.bit_count() for section in of_kind)
        if held < needed:
            findings.add(
                "D18", f"Model {entry.model}: its {kind} sections hold {held} bytes, and {needed} are needed.",
                at, needed, held,
            )  # fmt: skip
    if not entry.workspace_bytes and any(s.model == entry.model and s.kind == "workspace" for s in sections):
        findings.add(
            "D27", f"Model {entry.model} has a workspace section, and {name} says that it takes "
            f"{entry.workspace_bytes or 'nothing known'}.", at, given=entry.workspace_bytes,
        )  # fmt: skip
    for section in sections:
        if section.model == entry.model and section.writable != (section.kind in WRITABLE):
            is_to_be = "writable" if section.kind in WRITABLE else "not writable"
            findings.add("D17", f"Section {section.name} holds {section.kind} and must be {is_to_be}.", at)
