"""The checks before a board is touched: in the seed's order, in wide integers, and a failed step gives all back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from executor_rig import ExecutorRig
from fault_rig import Make, ended, ids_of, right_tokens, settle, view_of

from calserve.core.config import SchedulerConfig
from calserve.core.events import PrepareFailed
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.core.outcomes import Failure, FaultClass, FinishReason
from calserve.core.states import GenerationState
from calserve.executor.engine_step import EngineSteps
from calserve.executor.prepare import check_prepared
from calserve.runtime.checks import KvRoom, check_buffers, check_contract
from calserve.runtime.contract import GraphContract, TensorContract
from calserve.runtime.encoding import encode
from calserve.runtime.sim import PROFILES, Fault, FaultPoint, sim_package
from calserve.runtime.sim.package import decode_graph, prefill_graph

PROFILE = PROFILES["assumed-lanes"]
CONTEXT = PROFILE.context
ROOM = KvRoom(16, CONTEXT, 16)
DECODE = decode_graph(PROFILE, 4)
PREFILL = prefill_graph(PROFILE)


def row(lane: int = 0, first: int = 0, count: int = 1, **other: Any) -> Row:
    return replace(Row(f"r{lane}", lane, (lane,), first, count, LogitsWanted.LAST), **other)


def spec_of(*rows: Row, task: Task = Task.DECODE) -> JobSpec:
    return JobSpec(1, 1, "s0", "g", task, Bank.AUTO, 10**12, rows)


def wrong_with(spec: JobSpec, tokens: list[list[int]], contract: GraphContract = DECODE) -> tuple[int, str]:
    failure = check_prepared(contract, spec, ROOM, tokens)
    assert failure is not None
    assert (failure.stage, failure.fault) == ("prepare", FaultClass.PROGRAMMING)
    return failure.code, failure.detail


def test_prepare_names_the_first_thing_wrong_in_the_seeds_order() -> None:
    """Everything is wrong at once; each is put right in turn, and the next of seed 003, section 6.3 is named."""
    many = [row(lane, first=CONTEXT, count=0) for lane in range(5)]
    tokens = [[10**6]] * 5
    assert wrong_with(spec_of(*many), tokens) == (22, "row of r0: 0 tokens, limit 1")
    many = [replace(r, token_count=1) for r in many]
    assert wrong_with(spec_of(*many), tokens) == (14, f"row of r0: positions {CONTEXT}..{CONTEXT + 1}, limit {CONTEXT}")
    many = [replace(r, first_position=4) for r in many]
    assert wrong_with(spec_of(*many), tokens) == (22, "5 rows, limit 4")
    many.pop()
    assert wrong_with(spec_of(*many, task=Task.PREFILL), tokens) == (27, f"task prefill on graph {DECODE.name}")
    assert wrong_with(spec_of(*many), tokens) == (22, "ids of 5 rows for 4 rows")
    assert wrong_with(spec_of(*many), [[1], [1, 2], [1], [1]]) == (22, "row of r1: 2 ids for 1 tokens")
    assert wrong_with(spec_of(*many), [[1], [1], [64], [1]]) == (14, "row of r2: token id 64, limit 63")
    assert wrong_with(spec_of(*many), [[1], [1], [-1], [1]]) == (14, "row of r2: token id -1, limit 63")
    assert check_prepared(DECODE, spec_of(*many), ROOM, [[0], [1], [63], [2]]) is None


@pytest.mark.parametrize("first", [CONTEXT, 2**31 - 1, 2**63 - 1, 2**64 - 1, -1])
def test_prepare_position_that_would_wrap_is_refused(first: int) -> None:
    assert wrong_with(spec_of(row(first=first)), [[1]])[0] == 14


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ((row(4),), 14),  # a lane beyond the graph's rows
        ((row(-1, kv_units=(1,)),), 14),
        ((row(0), row(1, kv_units=(0,))), 14),
        ((row(0), row(0, kv_units=(1,))), 14),
        ((row(0, kv_units=()),), 14),
        ((row(0, kv_units=(0, 1)),), 14),
        ((row(0, kv_units=(16,)),), 14),
        ((), 22),
    ],
    ids=str,
)
def test_prepare_lanes_and_units_that_are_not_a_rows_own_are_refused(rows: tuple[Row, ...], code: int) -> None:
    assert wrong_with(spec_of(*rows), [[1]] * len(rows))[0] == code


def test_prepare_prompt_ends_exactly_at_the_context() -> None:
    for count, is_right in ((CONTEXT, True), (CONTEXT + 1, False)):
        spec = spec_of(row(15, count=count), task=Task.PREFILL)
        assert (check_prepared(PREFILL, spec, ROOM, [[1] * count]) is None) == is_right


# --- graphs and buffers -----------------------------------------------------------------------------------------------


def changed(contract: GraphContract, which: str, **fields: Any) -> GraphContract:
    """One tensor of the contract changed; `to` renames its key as well."""
    key = fields.pop("to", which)
    inputs = {key if n == which else n: replace(t, **fields) if n == which else t for n, t in contract.inputs.items()}
    return replace(contract, inputs=inputs)


def test_contracts_of_the_boards_packages_are_right() -> None:
    for profile in PROFILES.values():
        assert [check_contract(graph) for graph in sim_package(profile).graphs] == [""] * (1 + len(profile.profiles))


@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (changed(DECODE, "tokens", to="tokenz", name="tokenz"), "inputs missing ['tokens'], not known ['tokenz']"),
        (changed(DECODE, "tokens", name="token"), "tensor token stands under the name tokens"),
        (changed(DECODE, "tokens", dtype="int33"), "unknown dtype int33"),
        (changed(DECODE, "tokens", byte_size=17), "has 17 bytes, not 16"),
        (changed(DECODE, "tokens", shape=(4, 2), byte_size=32), "(4, 1) is needed"),
        (changed(DECODE, "valid", shape=(3,), byte_size=12), "(4,) is needed"),
        (replace(DECODE, inactive_lane_policy=None), "no policy for the inactive ones"),
        (replace(PREFILL, csr_names=("current_sequence_length",)), "two different ones"),
        (replace(PREFILL, csr_names=()), "say how long a row is"),
        (replace(DECODE, logits_tile=16), "in tiles of 16"),
        (replace(DECODE, vocab_size=65), "for a vocabulary of 65"),
        (replace(DECODE, outputs={}), "only logits are known"),
        (
            replace(DECODE, outputs={"logits": TensorContract("logits", (4, 64), "float16", 512, False)}),
            "logits of float16",
        ),
        (replace(PREFILL, inputs={n: t for n, t in PREFILL.inputs.items() if n != "kv_lanes"}), "their KV lanes"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_contract_with_one_thing_wrong_is_refused_by_that_thing(contract: GraphContract, words: str) -> None:
    wrong = check_contract(contract)
    assert words in wrong
    assert wrong.startswith(f"graph {contract.name}: ")


class Memory:
    """Host buffers that are only arrays, and remember what a runtime was asked."""

    def __init__(self, **arrays: np.ndarray[Any, Any]) -> None:
        self.arrays = arrays
        self.asked: list[tuple[str, str]] = []

    def host(self, name: str) -> np.ndarray[Any, Any]:
        return self.arrays[name]

    def map(self, name: str) -> int:
        self.asked.append(("map", name))
        return 0

    def slice(self, name: str, shape: tuple[int, ...]) -> int:
        self.asked.append(("slice", name))
        return 0


def memory_of(contract: GraphContract) -> Memory:
    tensors = (*contract.inputs.values(), *contract.outputs.values())
    return Memory(**{t.name: np.zeros(t.shape, t.dtype) for t in tensors})


@pytest.mark.parametrize(
    ("array", "code"),
    [(None, 4), (np.zeros((4, 1), np.int64), 21), (np.zeros((4, 2), np.int32), 22), (np.zeros(4, np.int32), 22)],
    ids=["name", "dtype", "shape", "rank"],
)
def test_buffers_that_are_not_the_contracts_are_refused(array: np.ndarray[Any, Any] | None, code: int) -> None:
    memory = memory_of(DECODE)
    assert check_buffers(DECODE, memory) is None  # type: ignore[arg-type]
    del memory.arrays["tokens"]
    if array is not None:
        memory.arrays["tokens"] = array
    wrong = check_buffers(DECODE, memory)  # type: ignore[arg-type]
    assert wrong is not None
    assert wrong[0] == code
    assert "tokens" in wrong[1]


@pytest.mark.parametrize("count", [CONTEXT + 1, 2**40])
def test_encode_row_beyond_its_tensor_asks_the_runtime_nothing_and_writes_nothing(count: int) -> None:
    memory = memory_of(PREFILL)
    fault = encode(PREFILL, spec_of(row(count=count), task=Task.PREFILL), [[1] * 4], memory)  # type: ignore[arg-type]
    assert fault is not None
    assert (fault.operation, fault.tensor, fault.code) == ("bounds", "tokens", 14)
    assert memory.asked == []
    assert not any(memory.arrays[name].any() for name in PREFILL.inputs)


# --- what a failed step gives back ------------------------------------------------------------------------------------


def held(rig: ExecutorRig) -> tuple[int, int, bool]:
    """Buffers leased, jobs on the board, and whether the board's KV is all free."""
    kv = rig.steps.ports["s0"].session.kv
    free = kv._lanes - len(kv._held)  # type: ignore[attr-defined]
    return rig.steps.buffer_counts().leased, rig.board.counters().left, free == rig.steps.ports["s0"].session.kv_units


@pytest.mark.parametrize(
    ("point", "at_visit", "stage", "code"),
    [
        (FaultPoint.ALLOCATE_FAILS, 1, "buffers", 1),
        (FaultPoint.KV_CANNOT_ALLOCATE, 1, "kv", 17),
        (FaultPoint.KV_APPLY_FAILS, 1, "apply", 1),
        (FaultPoint.MAP_FAILS, 1, "map", 24),
        (FaultPoint.MAP_FAILS, 3, "map", 24),
        (FaultPoint.SLICE_FAILS, 1, "slice", 22),
        (FaultPoint.SLICE_FAILS, 2, "slice", 22),
        (FaultPoint.CSR_FAILS, 1, "csr", 4),
        (FaultPoint.CSR_FAILS, 2, "csr", 4),
        (FaultPoint.SUBMIT_BUSY, 1, "submit", 17),
        (FaultPoint.SUBMIT_UNAVAILABLE, 1, "submit", 18),
    ],
)
def test_enqueue_that_fails_at_a_step_holds_nothing_and_never_reaches_the_device(
    make: Make, monkeypatch: pytest.MonkeyPatch, point: FaultPoint, at_visit: int, stage: str, code: int
) -> None:
    rig = make(Fault(point, at_visit))
    port, traced = rig.steps.ports["s0"], rig.board.trace(0)
    told: list[Failure] = []
    seen: list[tuple[int, int, bool]] = []
    submit = EngineSteps._submit

    def watched(self: EngineSteps, spec: JobSpec) -> object:
        events = submit(self, spec)
        if isinstance(events[0], PrepareFailed):
            told.append(events[0].failure)
            seen.append(held(rig))
        return events

    monkeypatch.setattr(EngineSteps, "_submit", watched)
    rig.submit("a", ids_of(rig), 4)
    assert [(failure.stage, failure.code) for failure in told] == [(stage, code)]
    assert seen == [(0, 0, True)]
    assert rig.board.trace(0) == traced
    assert port.in_flight == 0
    settle(rig)
    ended(rig, "a")
    assert rig.steps.buffer_counts().leased == 0


def test_second_row_that_the_board_refuses_gives_the_first_rows_kv_back(make: Make) -> None:
    """Both rows start in one job; the second `apply` fails, so the lane of the first is free again as well."""
    rig = make(Fault(FaultPoint.KV_APPLY_FAILS, at_visit=2))
    port = rig.steps.ports["s0"]
    rows = (row(0, count=3), row(1, count=3))
    assert port.apply_kv(spec_of(*rows)) is not None
    assert held(rig) == (0, 0, True)
    assert port.held == set()


def test_buffers_the_board_made_wrongly_fail_the_generation_and_are_not_used(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(config=SchedulerConfig(max_comebacks=0))  # what comes back later has other buffers
    session = rig.steps.ports["s0"].session
    wrong = memory_of(session.graphs["prefill_b1"])
    wrong.arrays["tokens"] = np.zeros((1, 8), np.int32)
    monkeypatch.setattr(session, "allocate", lambda _graph, _bank: (0, wrong))
    rig.submit("a", ids_of(rig), 4)
    failed = next(event for event in rig.events if isinstance(event, PrepareFailed)).failure
    assert (failed.stage, failed.code, failed.fault) == ("buffers", 22, FaultClass.ARTIFACT)
    settle(rig)
    assert not rig.specs
    assert ended(rig, "a")[1].reason is FinishReason.INTERNAL
    assert view_of(rig).state is GenerationState.FAILED


# --- the queue deadline -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("late_ns", "is_taken"), [(-1, True), (0, True), (1, False)])
def test_job_that_missed_its_queue_deadline_is_not_submitted_and_rolls_back(
    make: Make, monkeypatch: pytest.MonkeyPatch, late_ns: int, is_taken: bool
) -> None:
    rig = make()
    submit, first = EngineSteps._submit, []

    def late(self: EngineSteps, spec: JobSpec) -> object:
        if not first:
            spec = replace(spec, submit_by_ns=self.clock() - late_ns)
            first.extend(submit(self, spec))
            assert held(rig) == ((1, 1, False) if is_taken else (0, 0, True))
            assert rig.board.counters().left == int(is_taken)
            return tuple(first)
        return submit(self, spec)

    monkeypatch.setattr(EngineSteps, "_submit", late)
    rig.submit("a", ids_of(rig), 4)
    assert isinstance(first[0], PrepareFailed) != is_taken
    if not is_taken:
        failure = first[0].failure
        assert (failure.stage, failure.code, failure.fault) == ("queue", 13, FaultClass.TRANSIENT)
        assert failure.detail == "ready 1 ns after the queue deadline"
    settle(rig)
    assert ended(rig, "a")[0].tokens == right_tokens(rig, 4)
    rig.assert_nothing_held()


def test_prompt_served_after_every_kind_of_refusal_is_right(make: Make) -> None:
    """What a refused job left in the buffers or the mirror does not show in the next one."""
    points = (FaultPoint.SUBMIT_BUSY, FaultPoint.SLICE_FAILS, FaultPoint.KV_APPLY_FAILS)
    rig = make(*(Fault(point) for point in points))
    for i in range(4):
        rig.submit(f"r{i}", ids_of(rig, i), 4)
        settle(rig)
    assert ended(rig, "r3")[0].tokens == right_tokens(rig, 4, 3)
    rig.assert_nothing_held()
