"""FI01-FI06 and FI11 of seed 003, section 12: what goes wrong before the board has the job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from executor_rig import ExecutorRig
from fault_rig import Make, MakeAny, ended, ids_of, right_tokens, settle, view_of
from harness import prompt

from calserve.core.config import SchedulerConfig
from calserve.core.events import KvReleased, Load, PrepareFailed, Tick
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.core.outcomes import FinishReason
from calserve.core.states import GenerationState
from calserve.runtime.contract import BoardPackage, GraphContract, KvLayout
from calserve.runtime.encoding import encode
from calserve.runtime.sim import Fault, FaultPoint


def counted(rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch, name: str) -> list[object]:
    """Every call of the warm session's method `name`, by its first argument."""
    session, calls = rig.steps.ports["s0"].session, []
    true = getattr(session, name)

    def count(first: object, *rest: object) -> object:
        calls.append(first)
        return true(first, *rest)

    monkeypatch.setattr(session, name, count)
    return calls


# --- FI01 ---


def one_character(package: BoardPackage) -> BoardPackage:
    """The last character of the first input's name, in every graph."""

    def misspelt(graph: GraphContract) -> GraphContract:
        first = next(iter(graph.inputs))
        wrong = first[:-1] + "_"
        return replace(
            graph,
            inputs={
                wrong if name == first else name: replace(t, name=wrong) if name == first else t
                for name, t in graph.inputs.items()
            },
        )

    return replace(package, graphs=tuple(misspelt(graph) for graph in package.graphs))


def test_fi01_one_wrong_character_in_an_exact_name_fails_the_load_and_nothing_is_configured(
    make_any: MakeAny, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_any(one_character)
    configured: list[object] = []
    monkeypatch.setattr(rig.board, "configure", lambda *given: configured.append(given))
    rig.post(Load("s0", "m", rig.package.hash))
    rig.settle()
    view = view_of(rig)
    assert view.state is GenerationState.FAILED
    assert view.failure is not None
    assert (view.failure.stage, view.failure.code) == ("validate", 19)
    assert "missing" in view.failure.detail
    assert configured == []


# --- FI02 ---


def test_fi02_csr_of_a_name_that_does_not_exist_fails_the_job_in_prepare_unsubmitted(
    make_any: MakeAny, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_any()
    rig.run([prompt(rig.package, 7)], 2)  # the board's own buffers lie in the pool from here on
    session = rig.steps.ports["s0"].session
    graphs = {name: replace(graph, csr_names=("cur_seq", "total_seg")) for name, graph in session.graphs.items()}
    monkeypatch.setattr(session, "graphs", graphs)
    submitted = counted(rig, monkeypatch, "submit")
    rig.submit("a", prompt(rig.package, 7), 4)
    failed = next(event for event in rig.events if isinstance(event, PrepareFailed)).failure
    assert (failed.stage, failed.code) == ("csr", 4)
    rig.settle()
    assert submitted == []
    assert rig.outlet.told["a"].terminals == 1
    assert rig.steps.buffer_counts().leased == 0


# --- FI03 ---


def test_fi03_slice_beyond_its_tensor_is_refused_here_and_the_runtime_is_not_asked(
    make_any: MakeAny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One element more than the tensor has, on the board's own buffers."""
    rig = make_any()
    session = rig.steps.ports["s0"].session
    contract = next(graph for graph in session.graphs.values() if Task.PREFILL in graph.profile.tasks)
    code, buffers = session.allocate(contract.name, Bank.AUTO)
    assert code == 0
    assert buffers is not None
    asked: list[str] = []
    for operation in ("map", "slice", "set_csr"):
        monkeypatch.setattr(type(buffers), operation, lambda _self, *given: asked.append(given[0]))
    name = "tokens" if contract.kv_layout is KvLayout.LANES else "input_ids"
    count = contract.inputs[name].shape[-1] + 1
    row = Row("r", 0, (0,), 0, count, LogitsWanted.LAST)
    spec = JobSpec(1, 1, "s0", contract.name, Task.PREFILL, Bank.AUTO, 10**12, (row,))
    fault = encode(contract, spec, [[1] * count], buffers)
    assert fault is not None
    assert (fault.operation, fault.tensor, fault.code) == ("bounds", name, 14)
    assert asked == []
    assert not buffers.host(name).any()


# --- FI04 ---


def test_fi04_kv_that_cannot_be_had_is_waited_for_to_the_deadline_without_turning(make: Make) -> None:
    """The board is asked once; until the deadline nothing happens but the Tick of that deadline."""
    rig = make(Fault(FaultPoint.KV_CANNOT_ALLOCATE, times=10**6), config=SchedulerConfig(deadline_default_ns=10**9))
    visits = rig.board.device.plan.visits  # type: ignore[attr-defined]
    seen, began = len(rig.events), rig.clock()
    rig.submit("a", ids_of(rig), 4)
    settle(rig)
    assert ended(rig, "a")[1].reason is FinishReason.DEADLINE
    assert visits[FaultPoint.KV_CANNOT_ALLOCATE] == 1
    assert rig.clock() - began == 10**9
    kinds = [type(event).__name__ for event in rig.events[seen:]]
    assert kinds == ["Submit", "PrepareFailed", "Tick"]
    rig.board.device.plan.heal()  # type: ignore[attr-defined]
    rig.assert_nothing_held()


def test_fi04_kv_that_is_released_wakes_the_one_who_waits_and_once(make: Make) -> None:
    rig = make(Fault(FaultPoint.KV_CANNOT_ALLOCATE, at_visit=2))
    rig.submit("first", ids_of(rig, 1), 6)
    rig.submit("second", ids_of(rig, 2), 6)
    settle(rig)
    assert sum(isinstance(event, KvReleased) for event in rig.events) == 1
    assert not any(isinstance(event, Tick) for event in rig.events)
    for name, salt in (("first", 1), ("second", 2)):
        assert ended(rig, name)[0].tokens == right_tokens(rig, 6, salt)
    rig.assert_nothing_held()


# --- FI05, FI06 ---


def test_fi05_busy_board_rolls_the_job_back_and_nobody_waits_for_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(Fault(FaultPoint.SUBMIT_BUSY))
    waited = counted(rig, monkeypatch, "wait")
    rig.submit("a", ids_of(rig), 4)
    failed = next(event for event in rig.events if isinstance(event, PrepareFailed))
    assert (failed.failure.stage, failed.failure.code) == ("submit", 17)
    assert not rig.jobs
    assert waited == []
    assert rig.steps.buffer_counts().leased == 0
    assert rig.steps.ports["s0"].held == set()
    settle(rig)
    assert failed.job not in {job.spec.job for job in rig.specs}
    assert ended(rig, "a")[0].tokens == right_tokens(rig, 4)
    assert view_of(rig).generation == 1
    rig.assert_nothing_held()


def test_fi06_unavailable_board_stops_admission_and_is_recovered(make: Make) -> None:
    rig = make(Fault(FaultPoint.SUBMIT_UNAVAILABLE))
    rig.submit("a", ids_of(rig), 4)
    assert view_of(rig).state in (GenerationState.DRAINING, GenerationState.RECOVERING)
    rig.submit("b", ids_of(rig, 5), 4)
    assert not rig.jobs
    settle(rig)
    assert (view_of(rig).state, view_of(rig).generation) == (GenerationState.READY, 2)
    for name, salt in (("a", 3), ("b", 5)):
        told, ending = ended(rig, name)
        assert told.tokens == (right_tokens(rig, 4, salt) if ending.reason is FinishReason.LENGTH else [])
    rig.submit("c", ids_of(rig, 6), 4)
    settle(rig)
    assert ended(rig, "c")[0].tokens == right_tokens(rig, 4, 6)
    rig.assert_nothing_held()


# --- FI11 ---


def test_fi11_cancel_before_submit_reaches_no_device_and_holds_nothing(make_any: MakeAny) -> None:
    rig = make_any()
    lanes = rig.package.max_lanes
    for i in range(lanes):
        rig.submit(f"r{i}", prompt(rig.package, 3, salt=i), 5)
    rig.submit("late", prompt(rig.package, 9, salt=77), 5)
    rig.cancel("late")
    assert ended(rig, "late")[1].reason is FinishReason.CANCELLED
    rig.settle()
    assert all(row.request != "late" for job in rig.specs for row in job.spec.rows)
    assert all(ended(rig, f"r{i}")[1].reason is FinishReason.LENGTH for i in range(lanes))
    rig.assert_nothing_held()
