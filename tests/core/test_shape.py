"""The configuration held against what is proven: one sentence, or limits that let nothing in that cannot run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_rig import EVERYTHING, Rig, lane_facts, paged_facts

from calserve.core.config import SchedulerConfig
from calserve.core.events import Load
from calserve.core.shape import Shape, shape_of
from calserve.core.states import GenerationState


def made(config: SchedulerConfig | None = None, **facts: object) -> Shape:
    shape = shape_of(config or SchedulerConfig(), paged_facts(**facts))  # type: ignore[arg-type]
    assert isinstance(shape, Shape), shape
    return shape


def test_a_profile_no_graph_has_stops_the_start_with_one_sentence() -> None:
    rig = Rig(config=SchedulerConfig(profiles=(1, 8)), facts=lane_facts(profiles=(1, 4))).up()
    assert rig.view.state is GenerationState.FAILED
    assert rig.view.failure is not None
    assert rig.view.failure.detail == "session s: batch profile 8 is configured, the package has 1, 4"


def test_a_profile_above_a_flexible_graph_stops_the_start() -> None:
    sentence = shape_of(SchedulerConfig(profiles=(8,)), paged_facts(lanes=4))
    assert sentence == "session s: batch profile 8 is configured, the package has up to 4"


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (SchedulerConfig(max_in_flight=2), "concurrent_jobs"),
        (SchedulerConfig(profiles=(4,)), "batch_lanes"),
        (SchedulerConfig(profiles=(1, 4)), "resident_profiles"),
    ],
)
def test_a_configuration_beyond_the_proof_fails_with_the_capability_s_name(
    config: SchedulerConfig, missing: str
) -> None:
    facts = lane_facts(profiles=(1, 4), proven=EVERYTHING - {missing}, max_in_flight=2)
    sentence = shape_of(config, facts)
    assert isinstance(sentence, str)
    assert f"{missing}, which is not proven here" in sentence


def test_unproven_start_releases_the_board_and_refuses_those_who_waited() -> None:
    rig = Rig(config=SchedulerConfig(max_in_flight=2))
    commands = rig.send(Load("s", "m", "p"))
    rig.submit("r1")
    rig.lifecycle(commands)
    assert rig.view.state is GenerationState.FAILED
    assert [type(order).__name__ for order in rig.orders] == ["Validate", "Configure", "Release"]
    assert rig.refusal("r1") == ("model_failed", 0, 0)


def test_configured_profiles_bound_the_rows_of_a_flexible_graph() -> None:
    assert made(SchedulerConfig(profiles=(2,)), lanes=4).max_rows == 2


def test_without_batch_lanes_one_row_at_a_time() -> None:
    shape = made(proven=frozenset({"incremental_prefill", "mixed_batch"}))
    assert (shape.max_rows, shape.mixed) == (1, None)


def test_one_resident_profile_is_the_widest() -> None:
    shape = shape_of(SchedulerConfig(), lane_facts(profiles=(1, 2, 4), proven=frozenset({"batch_lanes"})))
    assert isinstance(shape, Shape)
    assert [graph.batch for graph in shape.decode] == [4]


def test_fixed_rows_lanes_no_allowed_profile_reaches_are_not_given() -> None:
    facts = lane_facts(profiles=(1, 4), lanes=4)
    shape = shape_of(SchedulerConfig(profiles=(1,)), facts)
    assert isinstance(shape, Shape)
    assert (shape.lanes, shape.kv_units) == (1, 1)


def test_prompts_that_may_not_be_cut_are_bounded_by_the_row() -> None:
    shape = shape_of(SchedulerConfig(), lane_facts(context=64, row_tokens=32))
    assert isinstance(shape, Shape)
    assert (shape.context, shape.max_prompt) == (64, 32)


def test_mixing_is_off_where_full_lanes_would_shut_a_chunk_out() -> None:
    assert made(lanes=4, job_tokens=6).mixed is not None  # 3 decodes and a chunk of 3
    assert made(lanes=4, job_tokens=5).mixed is None


def test_chunk_budget_is_never_below_the_shortest_cut() -> None:
    assert made(SchedulerConfig(prefill_chunk_tokens=1)).chunk_tokens == 3  # 2 + 2 - 1


@pytest.mark.parametrize("missing", ["prefill", "decode"])
def test_a_package_that_lacks_a_task_is_refused(missing: str) -> None:
    facts = lane_facts()
    kept = tuple(g for g in facts.graphs if all(task.value != missing for task in g.tasks))
    sentence = shape_of(SchedulerConfig(), replace(facts, graphs=kept))
    assert sentence == f"session s: the package has no graph that can {missing}"


def test_only_wide_decode_graphs_without_batch_lanes_are_refused_by_that_name() -> None:
    sentence = shape_of(SchedulerConfig(), lane_facts(profiles=(4,), proven=frozenset()))
    assert sentence == "session s: its decode graphs need batch_lanes, which is not proven here"


def test_a_board_without_kv_serves_nobody_and_says_so() -> None:
    sentence = shape_of(SchedulerConfig(), paged_facts(units=0))
    assert sentence == "session s: 4 lanes, 0 KV units, context 256 serve nobody"


def test_rows_too_short_for_any_cut_are_refused() -> None:
    sentence = shape_of(SchedulerConfig(), paged_facts(job_tokens=2))
    assert sentence == "session s: 2 tokens a row, a cut needs 3"


def test_a_package_without_a_mixed_graph_alternates_though_mixing_is_proven() -> None:
    proven = EVERYTHING - {"incremental_prefill"}
    shape = shape_of(SchedulerConfig(), lane_facts(proven=proven))
    assert isinstance(shape, Shape)
    assert shape.mixed is None
