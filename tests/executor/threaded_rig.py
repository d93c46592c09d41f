"""The real threads over a simulated board on wall time, with an outlet that wakes whoever waits for something."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from executor_rig import CollectingOutlet, byte_tokenizer

from calserve.core.config import SchedulerConfig
from calserve.core.engine import Engine
from calserve.core.events import Load, Submit
from calserve.core.snapshot import SessionView
from calserve.core.states import GenerationState
from calserve.executor.executor import BoardExecutor, ExecutorParts
from calserve.executor.messages import Delivery, Ending, Recorder, Submission
from calserve.executor.sequence import GenerationParams, Sequence
from calserve.runtime.contract import Board, BoardPackage, Evidence, LoadOptions
from calserve.runtime.sim import PROFILES, SimBoard, SimProfile, WallClock, sim_package
from calserve.sampling.params import SamplingParams

PATIENCE_S = 60.0


def fast_profile() -> SimProfile:
    """The assumed lanes in a hundredth of their time, so that a board on wall time is ready at once."""
    profile = PROFILES["assumed-lanes"]
    timing = profile.timing
    names = ("prefill_base_ns", "prefill_token_ns", "configure_ns", "reset_ns", "launch_ns")
    short = {name: max(1, getattr(timing, name) // 100) for name in names}
    decode = MappingProxyType({lanes: at // 100 for lanes, at in timing.decode_ns.items()})
    states = MappingProxyType({**profile.capabilities, "concurrent_jobs": Evidence.C0})  # as though proven
    return replace(profile, timing=replace(timing, decode_ns=decode, **short), capabilities=states)


@dataclass(slots=True)
class WaitingOutlet(CollectingOutlet):
    """Collects like its base, and wakes whoever waits for readiness, an ending or the exit."""

    ready: threading.Event = field(default_factory=threading.Event)
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    exited: threading.Event = field(default_factory=threading.Event)

    def deliver(self, batch: Many[Delivery | Ending]) -> None:
        CollectingOutlet.deliver(self, batch)
        for item in batch:
            if isinstance(item, Ending):
                self.ended.release()

    def sessions_changed(self, sessions: Many[SessionView]) -> None:
        CollectingOutlet.sessions_changed(self, sessions)
        if all(view.state is GenerationState.READY for view in sessions):
            self.ready.set()

    def exit(self, code: int, reason: str) -> None:
        CollectingOutlet.exit(self, code, reason)
        self.exited.set()


@dataclass(slots=True)
class Threaded:
    executor: BoardExecutor
    outlet: WaitingOutlet
    package: BoardPackage

    def submit(self, request: str, ids: list[int], new_tokens: int, deadline_ns: int | None = None) -> None:
        params = GenerationParams(
            SamplingParams(temperature=0.0), new_tokens, self.package.vocab_size, min_tokens=new_tokens
        )
        event = Submit(request, "default", "m", len(ids), new_tokens, time.monotonic_ns(), deadline_ns)
        sequence = Sequence(request, ids, params, byte_tokenizer(self.package.vocab_size))
        self.executor.post(Submission(event, sequence))

    def wait_endings(self, count: int) -> None:
        for _ in range(count):
            assert self.outlet.ended.acquire(timeout=PATIENCE_S)


@contextmanager
def threaded_rig(
    board: Board | None = None,
    package: BoardPackage | None = None,
    config: SchedulerConfig | None = None,
    recorders: tuple[Recorder, ...] = (),
) -> Iterator[Threaded]:
    """A Ready session `s0` on its threads; the board and the threads end with the context."""
    board = board or SimBoard(fast_profile(), clock=WallClock())
    package = package or sim_package(fast_profile())
    config, outlet = config or SchedulerConfig(), WaitingOutlet()
    options = {"s0": LoadOptions(chips=(0, 1), max_in_flight=config.max_in_flight)}
    parts = ExecutorParts(board, Engine(config), outlet, lambda _hash: package, options, time.monotonic_ns, recorders)
    executor = BoardExecutor(parts)
    executor.start()
    try:
        executor.post(Load("s0", "m", package.hash))
        assert outlet.ready.wait(PATIENCE_S)
        yield Threaded(executor, outlet, package)
    finally:
        executor.close()
        board.close()
