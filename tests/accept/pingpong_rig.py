"""Simulated boards on which two jobs in flight pay, or do not, and boards that lie about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from calserve.accept.pingpong import PingPongOptions, Report, run_pingpong
from calserve.core.board import RowBinding
from calserve.progress import SilentProgress
from calserve.runtime.contract import BoardPackage
from calserve.runtime.sim import PROFILES, FaultPlan, SimBoard, SimProfile, VirtualClock, sim_package

LANES = PROFILES["assumed-lanes"]
DMA_NS = 1_500_000
HOST_NS = 300_000


def pingpong_profile(dma_ns: int = DMA_NS, **changes: Any) -> SimProfile:
    """10 ms of compute for a B1 step, `dma_ns` before and after it."""
    timing = replace(LANES.timing, dma_setup_ns=dma_ns, dma_ns_per_kib=0)
    return replace(LANES, **{"context": 256, "timing": timing, **changes})


def one_row_package(profile: SimProfile) -> BoardPackage:
    """Prefill and B1 decode, each for any KV lane, so that two sequences share a board without sharing a job.

    The board's own graphs bind a decode row to its lane.
    """
    package = sim_package(profile)
    prefill, decode = package.graphs[:2]
    inputs = MappingProxyType({**decode.inputs, "kv_lanes": prefill.inputs["kv_lanes"]})
    free = replace(decode, profile=replace(decode.profile, row_binding=RowBinding.FREE), inputs=inputs)
    return replace(package, graphs=(prefill, free))


def prove(
    profile: SimProfile,
    package: BoardPackage | None = None,
    faults: FaultPlan | None = None,
    spoil: Callable[[Any, VirtualClock], Any] | None = None,
    **options: Any,
) -> Report:
    """A run on virtual time. spoil: what stands between the proof and the session it configured."""
    clock = VirtualClock()
    board: Any = SimBoard(profile, clock=clock, faults=faults)
    if spoil is not None:
        board = SpoiledBoard(board, lambda session: spoil(session, clock))
    chosen = {"tokens": 60, "steps": 60, "repeats": 1, **options}
    asked = PingPongOptions(clock.now_ns, lambda: clock.spend(HOST_NS), **chosen)
    return run_pingpong(board, package or one_row_package(profile), asked, SilentProgress())


def passed(report: Report) -> dict[str, bool]:
    return {check.name: check.passed for check in report.evidence.checks}


def figures(report: Report, name: str) -> dict[str, Any]:
    return next(check.figures for check in report.evidence.checks if check.name == name)


class SpoiledBoard:
    def __init__(self, board: SimBoard, spoil: Callable[[Any], Any]) -> None:
        self._board, self._spoil = board, spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._board, name)

    def configure(self, *asked: Any) -> Any:
        code, session = self._board.configure(*asked)
        return code, self._spoil(session)


class SpoiledSession:
    """A session that counts what is in flight; the children go wrong when it is two."""

    def __init__(self, session: Any, clock: VirtualClock) -> None:
        self._session, self._clock = session, clock
        self.in_flight = self.together = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def submit(self, spec: Any, buffers: Any) -> Any:
        self.in_flight += 1
        if self.in_flight == 2:
            self.together += 1
            self.start_beside(buffers)
        return self._session.submit(spec, buffers)

    def wait(self, ticket: Any, timeout_ns: int) -> Any:
        self.in_flight -= 1
        if self.in_flight == 1:
            self.wait_beside()
        return self._session.wait(ticket, timeout_ns)

    def start_beside(self, buffers: Any) -> None: ...

    def wait_beside(self) -> None: ...


class CrossingSession(SpoiledSession):
    """The 40th job that starts beside another writes the other sequence's KV lane."""

    def start_beside(self, buffers: Any) -> None:
        if self.together == 40:
            buffers.host("kv_lanes")[...] ^= 1


class StallingSession(SpoiledSession):
    """One in 20 waits with two in flight takes 30 ms more: the mean hardly sees it, the 99th percentile does."""

    def wait_beside(self) -> None:
        if self.together % 20 == 0:
            self._clock.spend(30_000_000)
