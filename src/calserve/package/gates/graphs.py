"""Gate C: what each graph promises holds together.

Owns contracts seen from the package: tensors, limits, lanes. Must not know memory or text. What keeps a graph from
being used at all is asked of `runtime.checks`, which the executor asks too, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from calserve.package.gates.finding import Findings, Place
from calserve.package.gates.work import Work
from calserve.package.manifest import MANIFEST, GraphEntry, ModelEntry
from calserve.package.tree import graph_contract
from calserve.runtime.checks import ContractPart, contract_complaint

_RULE_OF: Final[Mapping[ContractPart, str]] = MappingProxyType(
    {
        ContractPart.TENSOR: "C01",
        ContractPart.INPUTS: "C02",
        ContractPart.OUTPUTS: "C03",
        ContractPart.CSRS: "C04",
        ContractPart.LOGITS: "C05",
        ContractPart.LANES: "C06",
        ContractPart.INACTIVE: "C07",
        ContractPart.LENGTHS: "C08",
    }
)


def check_graphs(work: Work, findings: Findings) -> None:
    """Fill `work.contracts`."""
    for model in work.checked_tree().manifest.models:
        _check_context(model, findings)
        _check_reach(model, findings)
        for graph in model.graphs:
            contract = graph_contract(graph, model.vocab_size)
            work.contracts[model.name, graph.name] = contract
            at = _at(model, graph)
            complaint = contract_complaint(contract)
            if complaint is not None:
                part, text = complaint
                findings.add(_RULE_OF[part], f"Graph {graph.name} of {model.name}: {text}.", at)
                continue
            _check_limits(model, graph, findings)
            _check_integers(graph, at, findings)
            if graph.kv_layout == "paged":
                _check_paged(model, graph, findings)


def _at(model: ModelEntry, graph: GraphEntry) -> Place:
    return Place(file=MANIFEST, model=model.name, graph=graph.name)


def _check_context(model: ModelEntry, findings: Findings) -> None:
    at = Place(file=MANIFEST, model=model.name)
    if model.context > model.trained_context:
        findings.add(
            "C10",
            f"Model {model.name}: the context {model.context} is longer than the {model.trained_context} tokens it was "
            "trained for.",
            at, model.trained_context, model.context,
        )  # fmt: skip
    elif model.context < 2:
        findings.add("C10", f"Model {model.name}: a context of 1 token leaves none to generate.", at, 2, model.context)


def _check_reach(model: ModelEntry, findings: Findings) -> None:
    """A graph with fixed rows reaches as many lanes as it has rows, one with free rows any."""
    for task in ("prefill", "decode"):
        able = [graph for graph in model.graphs if task in graph.tasks]
        reach = max(model.lanes if graph.row_binding == "free" else graph.batch.rows for graph in able)
        if reach < model.lanes:
            findings.add(
                "C14",
                f"Model {model.name}: its {task} graphs reach {reach} of {model.lanes} lanes.",
                Place(file=MANIFEST, model=model.name), model.lanes, reach,
            )  # fmt: skip


def _check_limits(model: ModelEntry, graph: GraphEntry, findings: Findings) -> None:
    at, whose = _at(model, graph), f"Graph {graph.name} of {model.name}"
    if graph.max_tokens < model.context:
        findings.add(
            "C09",
            f"{whose} addresses {graph.max_tokens} tokens, below the context {model.context}.",
            at, model.context, graph.max_tokens,
        )  # fmt: skip
    if graph.batch.rows > 1 and graph.inactive_lane_policy is None:
        findings.add("C07", f"{whose} runs {graph.batch.rows} lanes and declares no policy for unused ones.", at)
    if graph.batch.fixed and graph.batch.rows > 1 and graph.inactive_lane_policy == "omit":
        findings.add(
            "C15", f"{whose} always runs {graph.batch.rows} rows, and its policy is to omit the unused ones.", at
        )
    rising = (
        ("min_chunk_tokens", graph.min_chunk_tokens, "max_row_tokens", graph.max_row_tokens),
        ("max_row_tokens", graph.max_row_tokens, "max_tokens", graph.max_tokens),
        ("max_row_tokens", graph.max_row_tokens, "max_job_tokens", graph.max_job_tokens),
        ("min_flat_tokens", graph.min_flat_tokens, "max_job_tokens", graph.max_job_tokens),
        ("max_job_tokens", graph.max_job_tokens, "all rows' tokens", graph.batch.rows * graph.max_row_tokens),
    )
    for least, low, most, high in rising:
        if low > high:
            findings.add("C11", f"{whose}: {least} {low} is more than {most} {high}.", at, high, low)


def _check_integers(graph: GraphEntry, at: Place, findings: Findings) -> None:
    for tensor in graph.inputs:
        if tensor.dtype not in ("int32", "int64"):
            findings.add(
                "C13", f"Graph {graph.name}: input {tensor.name} is {tensor.dtype}, and ids, positions and lengths are "
                "int32 or int64.", at, "int32, int64", tensor.dtype,
            )  # fmt: skip


def _check_paged(model: ModelEntry, graph: GraphEntry, findings: Findings) -> None:
    """Room for the largest job. A job below `min_flat_tokens` is padded with one more row, into a scratch unit."""
    rows = graph.batch.rows + (1 if graph.min_flat_tokens > 1 else 0)
    blocks = -(-model.context // model.kv.unit_tokens)
    logits = graph.outputs[0].shape
    at_least = {
        "input_ids": graph.max_job_tokens,
        "position_ids": graph.max_job_tokens,
        "past_lens": rows,
        "subsequence_begins": rows + 1,
        "block_indices": blocks,
        "block_indices_begins": rows + 1,
        "sampled_tokens_indices": graph.batch.rows,
    }
    at = _at(model, graph)
    for tensor in graph.inputs:
        least = at_least.get(tensor.name)
        right = tensor.shape == () if least is None else len(tensor.shape) == 1 and tensor.shape[0] >= least
        if not right:
            wanted = "no dimension" if least is None else f"one dimension of at least {least}"
            sentence = f"Graph {graph.name} of {model.name}: {tensor.name} has shape {list(tensor.shape)}, {wanted} is"
            findings.add("C12", f"{sentence} needed.", at, least or "", list(tensor.shape))
    if graph.logits_tile == 1 and (len(logits) != 2 or logits[0] < graph.batch.rows):
        sentence = f"logits of shape {list(logits)} have no row for each of {graph.batch.rows} lanes"
        findings.add("C12", f"Graph {graph.name} of {model.name}: {sentence}.", at, graph.batch.rows, list(logits))
