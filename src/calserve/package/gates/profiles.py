"""Which graphs a model must have: one for each task and compiled batch, no more and no fewer.

Owns coverage of profiles. Must not know files or tensors. A graph of any batch up to n covers every profile up to n.
"""

from __future__ import annotations

from collections import defaultdict

from calserve.package.gates.finding import Findings, Place
from calserve.package.manifest import MANIFEST, GraphEntry, ModelEntry


def check_profiles(model: ModelEntry, findings: Findings) -> None:
    at = Place(file=MANIFEST, model=model.name)
    profiles = model.profiles
    if list(profiles) != sorted(set(profiles)) or profiles[-1] != model.lanes:
        findings.add(
            "B18",
            f"Model {model.name}: profiles {list(profiles)} must rise and end with the number of lanes, {model.lanes}.",
            at, model.lanes, list(profiles),
        )  # fmt: skip
        return
    for task in ("prefill", "decode"):
        if not any(task in graph.tasks for graph in model.graphs):
            findings.add("B17", f"Model {model.name} has no graph that can {task}.", at)
    _check_decode(model, at, findings)
    _check_others(model, findings)


def _check_decode(model: ModelEntry, at: Place, findings: Findings) -> None:
    decoders = [graph for graph in model.graphs if "decode" in graph.tasks]
    for graph in decoders:
        if graph.batch.fixed and graph.batch.rows not in model.profiles:
            findings.add(
                "B20",
                f"Graph {graph.name} of {model.name} decodes batch {graph.batch.rows}, which is no profile.",
                _at(model, graph), list(model.profiles), graph.batch.rows,
            )  # fmt: skip
    for profile in model.profiles if decoders else ():
        able = [graph for graph in decoders if _covers(graph, profile)]
        if not able:
            findings.add("B19", f"Model {model.name}: no graph decodes profile {profile}.", at, given=profile)
        elif len(able) > 1:
            names = ", ".join(graph.name for graph in able)
            findings.add(
                "B21", f"Model {model.name}: {names} all decode profile {profile}.", _at(model, able[1]), 1, len(able)
            )


def _covers(graph: GraphEntry, profile: int) -> bool:
    return graph.batch.rows == profile if graph.batch.fixed else graph.batch.rows >= profile


def _check_others(model: ModelEntry, findings: Findings) -> None:
    """Prefill and mixed graphs. Prefills of one batch may differ in how many tokens a row takes."""
    seen: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for graph in model.graphs:
        rows = graph.batch.rows
        if "prefill" in graph.tasks:
            seen["prefill", rows, graph.max_row_tokens].append(graph.name)
        if "mixed" in graph.tasks:
            seen["mixed", rows, 0].append(graph.name)
        if graph.batch.fixed and "decode" not in graph.tasks and rows > model.lanes:
            findings.add(
                "B20", f"Graph {graph.name} of {model.name} runs {rows} rows, and the model has {model.lanes} lanes.",
                _at(model, graph), model.lanes, rows,
            )  # fmt: skip
    for (task, rows, _), names in seen.items():
        if len(names) > 1:
            findings.add(
                "B21", f"Model {model.name}: {', '.join(names)} do the same {task} of batch {rows}.",
                Place(file=MANIFEST, model=model.name, graph=names[1]), 1, len(names),
            )  # fmt: skip


def _at(model: ModelEntry, graph: GraphEntry) -> Place:
    return Place(file=MANIFEST, model=model.name, graph=graph.name)
