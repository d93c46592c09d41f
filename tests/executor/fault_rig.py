"""A loaded rig over a simulated board whose faults count from the moment it is Ready, and what tests ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from executor_rig import Collected, ExecutorRig, byte_tokenizer
from harness import prompt

from calserve.core.config import SchedulerConfig
from calserve.core.events import Tick
from calserve.core.snapshot import SessionView
from calserve.executor.messages import Ending
from calserve.runtime.contract import Evidence
from calserve.runtime.sim import PROFILES, Fault, FaultPlan, SimBoard, SimDevice, VirtualClock, sim_package
from calserve.runtime.sim.oracle import greedy_tokens

Make = Callable[..., ExecutorRig]
MakeAny = Callable[..., ExecutorRig]  # see `tests/faults/conftest.py`


@contextmanager
def fault_rigs() -> Iterator[Make]:
    """make(*faults, profile=, jobs=, config=, cut=, two=): a rig; its board is closed at the end.

    cut: capabilities that are not proven on it. two: sessions `s0` and `s1`, each on a chip of its own.
    """
    boards: list[SimBoard] = []

    def made(
        *faults: Fault,
        profile: str = "assumed-lanes",
        jobs: int = 1,
        config: SchedulerConfig | None = None,
        cut: tuple[str, ...] = (),
        two: bool = False,
    ) -> ExecutorRig:
        proven = {"concurrent_jobs": Evidence.C0} if jobs > 1 else {}  # as though somebody had proven it
        states = {**PROFILES[profile].capabilities, **proven, **dict.fromkeys(cut, Evidence.C3)}
        facts = replace(PROFILES[profile], capabilities=MappingProxyType(states))
        clock, package = VirtualClock(), sim_package(facts)
        plan = FaultPlan()
        board = SimBoard(device=SimDevice(facts, clock, plan))
        boards.append(board)
        config = config or SchedulerConfig(max_in_flight=jobs)
        sessions = {"s0": (0,), "s1": (1,)} if two else None
        rig = ExecutorRig(board, package, clock.now_ns, byte_tokenizer(package.vocab_size), config, sessions)
        rig.load()
        plan.visits.clear()
        plan.__init__(faults)  # type: ignore[misc]
        return rig

    try:
        yield made
    finally:
        for board in boards:
            board.close()


def pass_time(rig: ExecutorRig) -> bool:
    """To the next deadline of `core`, and its Tick; False when there is none."""
    due = rig.engine.next_deadline_ns()
    if due is not None:
        rig.board.device.clock.advance_to(max(due, rig.clock()))  # type: ignore[attr-defined]
        rig.post(Tick())
    return due is not None


def settle(rig: ExecutorRig) -> None:
    """As the threads would: run what there is, and when only time helps, let it pass to the next deadline."""
    for _ in range(1000):
        rig.settle()
        if not pass_time(rig):
            return
    raise AssertionError("never came to rest")


def ended(rig: ExecutorRig, request: str) -> tuple[Collected, Ending]:
    told = rig.outlet.told[request]
    assert told.terminals == 1
    assert told.ending is not None
    return told, told.ending


def ids_of(rig: ExecutorRig, salt: int = 3) -> list[int]:
    return prompt(rig.package, 7, salt=salt)


def right_tokens(rig: ExecutorRig, n: int, salt: int = 3) -> list[int]:
    return greedy_tokens(ids_of(rig, salt), n, vocab=rig.package.vocab_size)


def view_of(rig: ExecutorRig) -> SessionView:
    return rig.engine.snapshot(rig.clock()).sessions[0]
