"""Production core and executor steps with two jobs in flight, as evidence allows them, on a board where they pay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from executor_rig import ExecutorRig, byte_tokenizer

from calserve.accept.proven import ProvenBoard
from calserve.core.config import SchedulerConfig
from calserve.core.events import Tick
from calserve.core.outcomes import FinishReason
from calserve.core.snapshot import SessionView
from calserve.executor.lifecycle import LifecycleSteps
from calserve.observe.metrics import Metrics
from calserve.observe.requests import Measures
from calserve.runtime.contract import LoadOptions
from calserve.runtime.sim import PROFILES, Fault, FaultPlan, SimBoard, SimDevice, VirtualClock, sim_package
from calserve.runtime.sim.oracle import greedy_tokens

PROFILE = PROFILES["assumed-pingpong"]
PROMPTS = {f"r{lane}": [(5 * lane + i) % 64 for i in range(7)] for lane in range(8)}


@dataclass(slots=True)
class Two:
    """A Ready session of eight lanes. late_pairs: jobs that went out beside another after two had been given up."""

    rig: ExecutorRig
    device: SimDevice
    tokens: int = 0
    late_pairs: list[int] = field(default_factory=list)

    @property
    def view(self) -> SessionView:
        return self.rig.engine.snapshot(self.rig.clock()).sessions[0]

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.rig.engine.snapshot(self.rig.clock()).counters)

    def submit_all(self, tokens: int) -> None:
        """One request a lane: four rows in each of two jobs."""
        self.tokens = tokens
        for name, prompt in PROMPTS.items():
            self.rig.submit(name, prompt, tokens)

    def step(self) -> bool:
        """The next thing that happens; False when nothing will."""
        rig, was_lowered, sent = self.rig, bool(self.view.downgrade_reason), len(self.rig.specs)
        if rig.orders:
            rig.run_order()
        elif rig.jobs:
            rig.retire_one()
        else:
            due_ns = rig.engine.next_deadline_ns()
            if due_ns is None:
                return False
            self.device.clock.advance_to(max(due_ns, rig.clock()))  # type: ignore[attr-defined]
            rig.post(Tick())
        rig.engine.check_invariants()
        if was_lowered and len(rig.specs) > sent and self.view.jobs_in_flight > 1:
            self.late_pairs.append(rig.specs[-1].spec.job)
        return True

    def run_to_the_end(self) -> None:
        for _ in range(5000):
            if not self.step():
                return
        raise AssertionError("never came to rest")

    def run_until_two(self) -> None:
        """Until two decodes are on the board together."""
        while self.view.jobs_in_flight < 2 or any(job.spec.rows[0].first_position == 0 for job in self.rig.jobs):
            assert self.step()

    def metrics(self) -> str:
        return Metrics(Measures(("m",))).render(self.rig.engine.snapshot(self.rig.clock())).decode()

    def assert_ended_once_and_right(self) -> set[FinishReason]:
        """Every request has one end, and those that ran to theirs have the model's tokens."""
        told = self.rig.outlet.told
        assert set(told) == set(PROMPTS)
        for name, heard in told.items():
            assert heard.terminals == 1, name
            assert heard.ending is not None
            right = greedy_tokens(PROMPTS[name], self.tokens, vocab=64)
            assert heard.tokens == right[: len(heard.tokens)], name
            if heard.ending.reason is FinishReason.LENGTH:
                assert len(heard.tokens) == self.tokens
        return set(self.rig.endings().values())


@contextmanager
def two_in_flight(*faults: Fault, config: SchedulerConfig | None = None, proof: str = "evidence.json") -> Iterator[Two]:
    """faults: count their visits from the moment the session is Ready. proof: "" for a board without evidence."""
    clock, package, plan = VirtualClock(), sim_package(PROFILE), FaultPlan()
    device = SimDevice(PROFILE, clock, plan)
    sim = SimBoard(device=device)
    board = ProvenBoard(sim, "concurrent_jobs", proof)
    config = config or SchedulerConfig(max_in_flight=2)
    rig = ExecutorRig(board, package, clock.now_ns, byte_tokenizer(64), config)
    options = {"s0": LoadOptions((0,), max_in_flight=config.max_in_flight)}
    rig.lifecycle = LifecycleSteps(board, lambda _hash: package, options, clock.now_ns)
    try:
        rig.load()
        plan.visits.clear()
        plan.__init__(faults)  # type: ignore[misc]
        yield Two(rig, device)
    finally:
        sim.close()
