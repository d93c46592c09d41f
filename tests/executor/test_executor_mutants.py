"""Guards with the guard taken out: each planted bug shows, on lane KV and on paged KV alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappush

import pytest
from executor_rig import ExecutorRig
from harness import prompt

from calserve.core.job import JobSpec, Task
from calserve.core.kv import KvLedger, Lane
from calserve.core.outcomes import FinishReason
from calserve.core.states import IllegalTransition
from calserve.executor import completion
from calserve.executor.engine_step import EngineSteps

NEW_TOKENS = 12


def pair(rig: ExecutorRig) -> list[list[int]]:
    return [prompt(rig.package, 6, salt=31), prompt(rig.package, 9, salt=32)]


def shows(rig: ExecutorRig, plant: Callable[[], None]) -> bool:
    """Whether the two prompts, run together with the bug planted, do not give what each gives alone, or stop."""
    alone = [rig.run([ids], NEW_TOKENS)[0] for ids in pair(rig)]
    assert rig.run(pair(rig), NEW_TOKENS) == alone, "the unmutated code must pass"
    plant()
    try:
        return rig.run(pair(rig), NEW_TOKENS) != alone
    except AssertionError as stopped:
        return "after its end" in str(stopped)


def test_mutant_reservation_dropped_is_caught(rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that promises a lane and does not take it: the second holder of the lane stops the engine loudly."""
    prompts = [prompt(rig.package, 3 + i, salt=i) for i in range(rig.package.max_lanes + 4)]
    rig.run(prompts, 3)
    assert set(rig.endings().values()) == {FinishReason.LENGTH}, "the unmutated code must pass"
    true_reserve = KvLedger.reserve

    def reserve(self: KvLedger, holder: str, tokens: int) -> Lane:
        lane = true_reserve(self, holder, tokens)
        heappush(self._free_lanes, lane.index)
        return lane

    monkeypatch.setattr(KvLedger, "reserve", reserve)
    with pytest.raises(IllegalTransition, match="LaneState"):
        rig.run(prompts, 3)


def test_mutant_two_rows_swapped_at_retirement_is_caught(rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    true_index = completion.logits_index

    def swapped(contract: object, spec: JobSpec) -> tuple[int | None, ...]:
        return tuple(reversed(true_index(contract, spec)))  # type: ignore[arg-type]

    assert shows(rig, lambda: monkeypatch.setattr(completion, "logits_index", swapped))


def test_mutant_two_kv_units_swapped_is_caught(rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    true_submit = EngineSteps._submit

    def submit(self: EngineSteps, spec: JobSpec) -> object:
        if spec.task is Task.DECODE and len(spec.rows) == 2:
            a, b = spec.rows
            spec = replace(
                spec,
                rows=(
                    replace(a, lane=b.lane, kv_units=b.kv_units),
                    replace(b, lane=a.lane, kv_units=a.kv_units),
                ),
            )
        return true_submit(self, spec)

    assert shows(rig, lambda: monkeypatch.setattr(EngineSteps, "_submit", submit))


def test_mutant_sequence_not_advanced_by_its_own_job_is_caught(
    rig: ExecutorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences handed to the completion step in another order than the job's rows."""
    true_step = completion._read_rows

    def read(job: completion.SubmittedJob) -> object:
        job.sequences.reverse()
        out = true_step(job)
        job.sequences.reverse()
        return out

    assert shows(rig, lambda: monkeypatch.setattr(completion, "_read_rows", read))
