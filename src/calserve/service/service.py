"""The service: everything between a checked request and the engine's inbox, and the server's own state.

Owns the way of a request (look the model up, build it beside the loop, submit, read, let go), health answers, and
the orderly end.
Must not know HTTP. Life: made on the event loop once the executor exists; `begin_shutdown` closes its door;
`wait_ended` gives the process's exit code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from calserve.core.config import SchedulerConfig
from calserve.core.events import CancelCause, Shutdown
from calserve.core.outcomes import FinishReason, Refusal, RefusalKind, Usage
from calserve.core.snapshot import EngineSnapshot
from calserve.executor.messages import Ending, Inspect, Submission
from calserve.service.bridge import Bridge, Stream
from calserve.service.catalogue import Catalogue, PackageFacts, ServedModel, is_ready
from calserve.service.generation import Ask, Refused, member_ids, new_id, submissions
from calserve.service.prompts import early_refusal, token_ids
from calserve.service.tokenizing import TokenizingPool

_log = logging.getLogger(__name__)

# How long the engine thread may take to answer a question before it counts as stuck. It never blocks for longer
# than one `submit`, which does not block.
ANSWER_S = 5.0
# After the last moment at which `core` orders the end (the drain and `overdue_grace_ns`, with 0, 75 or 76): for the
# order to arrive here.
EXIT_GRACE_NS = 2_000_000_000
# No order came: the engine is stuck, which is a fault of ours (sysexits' EX_SOFTWARE) and says nothing of the device.
EXIT_ENGINE_STUCK = 70
DEFAULT_DRAIN_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class ServedName:
    """A model as clients see it. context: tokens, prompt and output together."""

    alias: str
    context: int


@dataclass(frozen=True, slots=True)
class Liveness:
    """is_live False means that a supervisor should end this process. `reason` is one sentence for it."""

    is_live: bool
    reason: str


class Service:
    """Used on the event loop only.

    Invariants: once draining, always draining; a stream handed out by `submit` is known to the bridge until
    `reading` lets it go.
    """

    def __init__(
        self,
        bridge: Bridge,
        catalogue: Catalogue[PackageFacts],
        scheduler: SchedulerConfig,
        clock: Callable[[], int],
        pool: TokenizingPool | None = None,
    ) -> None:
        self._bridge = bridge
        self._catalogue = catalogue
        self._scheduler = scheduler
        self._clock = clock
        self._pool = pool or TokenizingPool()
        self._is_draining = False
        self._inspection: asyncio.Future[EngineSnapshot] | None = None
        self._loop = asyncio.get_running_loop()
        self._drain_calls: set[Callable[[], None]] = set()
        bridge.exit_code.add_done_callback(lambda _: self._tell_drain())

    # Requests

    def now_ns(self) -> int:
        """The engine's clock, for `Ask.arrived_ns`."""
        return self._clock()

    async def submit(self, ask: Ask) -> Stream | Refused:
        """Build and hand over. `core` still may refuse each member: its ending then carries the refusal."""
        if self.is_draining:
            return Refused(Refusal(RefusalKind.MODEL_DRAINING))
        model = self._catalogue.find(ask.model)
        if model is None:
            return Refused(Refusal(RefusalKind.UNKNOWN_MODEL))
        refused = early_refusal(model, ask)
        if refused is not None:
            return refused
        if self._pool.is_full:
            return Refused(Refusal(RefusalKind.QUEUE_FULL, self._pool.max_waiting, self._pool.max_waiting + 1))
        id = new_id(ask.label)
        context = self._catalogue.context(ask.model, self._bridge.sessions)
        try:
            async with asyncio.timeout((ask.arrived_ns + self._scheduler.deadline_default_ns - self._clock()) / 1e9):
                made = await self._pool.run(partial(_build, ask, model, id, context))
        except TimeoutError:
            return _overdue(id)
        if isinstance(made, Refused):
            return made
        if self.is_draining:
            return Refused(Refusal(RefusalKind.MODEL_DRAINING))
        return self._hand_over(ask, id, made)

    def _hand_over(self, ask: Ask, id: str, made: list[Submission]) -> Stream:
        stream = Stream(id, [submission.event.request for submission in made], wakes_on_text=ask.is_streaming)
        self._bridge.open(stream)
        for submission in made:
            self._bridge.post(submission)
        return stream

    @contextmanager
    def reading(self, stream: Stream) -> Iterator[Stream]:
        """For as long as a client reads: on the way out, whatever is still running for it is cancelled."""
        try:
            yield stream
        finally:
            if not stream.is_stalled:
                self._bridge.cancel(stream, CancelCause.CLIENT_GONE)
            self._bridge.close(stream)

    def cancel(self, id: str) -> bool:
        """Cancel what the client knows as `id`; False when nothing by that name is open. Its reader is told."""
        stream = self._bridge.find(id)
        if stream is None:
            return False
        self._bridge.cancel(stream, CancelCause.ASKED)
        return True

    # Answers

    def ready_models(self) -> list[ServedName]:
        if self.is_draining:
            return []
        sessions = self._bridge.sessions
        return [
            ServedName(alias, self._catalogue.context(alias, sessions) or model.package.context)
            for alias in self._catalogue.aliases
            if (model := self._catalogue.find(alias)) is not None and is_ready(alias, sessions)
        ]

    def has_model(self, alias: str) -> bool:
        """Whether the alias is served here at all, ready or not."""
        return self._catalogue.find(alias) is not None

    def eos_ids(self, alias: str) -> frozenset[int]:
        model = self._catalogue.find(alias)
        return frozenset(model.package.eos_token_ids) if model is not None else frozenset()

    def token_bytes(self, alias: str, token: int) -> bytes:
        """What one token looks like alone, for log-probabilities; special tokens are shown, not hidden."""
        model = self._catalogue.find(alias)
        assert model is not None, "log-probabilities of a model that is not served"
        return model.tokenizer.token_bytes(token)

    async def inspect(self) -> EngineSnapshot | None:
        """The engine's own view, or None when it does not answer. Askers at the same time share one question."""
        if self._inspection is None or self._inspection.done():
            self._inspection = self._loop.create_future()
            self._bridge.post(Inspect(partial(self._reply, self._inspection)))
        try:
            return await asyncio.wait_for(asyncio.shield(self._inspection), ANSWER_S)
        except TimeoutError:
            return None

    async def liveness(self) -> Liveness:
        """Whether the engine answers and no job has outlived its deadline and every grace after it.

        Judged from the oldest job on the board against its own deadline, which follows from its expected time: a
        long prefill has a long one, and neither new requests nor an idle board change the answer.
        """
        if self._bridge.exit_code.done():
            # After an orderly end the last answers are still leaving; without one a supervisor should step in.
            return Liveness(self._is_draining, "ending" if self._is_draining else "the engine has ended")
        snapshot = await self.inspect()
        if snapshot is None:
            return Liveness(False, f"the engine has not answered for {ANSWER_S:.0f} s")
        config, now = self._scheduler, self._clock()
        # An overdue job is first waited on, then drained and reset; only past all of that is the process stuck.
        grace = config.overdue_grace_ns + config.recovery_drain_ns
        for view in snapshot.sessions:
            submitted = view.oldest_job_submitted_ns
            if submitted is None:
                continue
            deadline = view.oldest_job_deadline_ns or submitted + config.execution_deadline_floor_ns
            if now > deadline + grace:
                return Liveness(False, f"a job was submitted {(now - submitted) / 1e9:.1f} s ago and has not come back")
        return Liveness(True, "ok")

    # The end

    @property
    def is_draining(self) -> bool:
        """Whether the door is closed: a drain began, or the engine ended without one."""
        return self._is_draining or self._bridge.exit_code.done()

    @contextmanager
    def told_of_drain(self, call: Callable[[], None]) -> Iterator[None]:
        """Within it, `call` is called when a drain begins, or at once when one already has; once."""
        if self.is_draining:
            call()
        else:
            self._drain_calls.add(call)
        try:
            yield
        finally:
            self._drain_calls.discard(call)

    def begin_shutdown(self, drain_ns: int = DEFAULT_DRAIN_NS) -> None:
        """Readiness ends at once; open streams end, or are told, within `drain_ns`. A second call hurries: now.

        The process ends with 0 once the board is released; with 75 or 76 when that takes longer than `drain_ns` and
        the scheduler's `overdue_grace_ns` (75: a job has not come back and may still write our memory); with 70 when
        the engine has not said even that `EXIT_GRACE_NS` later.
        """
        if self._is_draining:
            drain_ns = 0  # who asks twice does not want to wait; `core` and the timers below keep the earlier end
        self._is_draining = True
        _log.info("draining: %d open streams get at most %.1f s", self.open_streams, drain_ns / 1e9)
        self._tell_drain()
        self._bridge.post(Shutdown(self._clock() + drain_ns))
        last_ns = drain_ns + self._scheduler.overdue_grace_ns + EXIT_GRACE_NS
        self._loop.call_later(last_ns / 1e9, self._overrun)

    async def wait_ended(self) -> int:
        """The process's exit code, once `core` ordered the end (or the engine turned out to be stuck)."""
        return await asyncio.shield(self._bridge.exit_code)

    @property
    def open_streams(self) -> int:
        return self._bridge.open_streams

    def close(self) -> None:
        self._pool.close()

    def _tell_drain(self) -> None:
        while self._drain_calls:
            self._drain_calls.pop()()

    def _overrun(self) -> None:
        self._bridge.end_process(
            EXIT_ENGINE_STUCK, "the engine did not order the end by its deadline", FinishReason.SHUTDOWN
        )

    def _reply(self, future: asyncio.Future[EngineSnapshot], snapshot: EngineSnapshot) -> None:
        self._loop.call_soon_threadsafe(_settle, future, snapshot)


def _build(ask: Ask, model: ServedModel[PackageFacts], id: str, context: int | None) -> list[Submission] | Refused:
    """On a thread of the pool: tokenizing, stop strings and penalties take time in proportion to the request."""
    prompts = token_ids(model, ask)
    if isinstance(prompts, Refused):
        return prompts
    return submissions(ask, model, member_ids(id, len(prompts) * ask.n), prompts, context)


def _overdue(id: str) -> Stream:
    """What became of a request whose deadline passed in the line before the tokenizing pool: a stream that ended."""
    stream = Stream(id, (id,), wakes_on_text=False)
    stream.push(0, Ending(id, FinishReason.DEADLINE, Usage(0, 0)))
    return stream


def _settle(future: asyncio.Future[EngineSnapshot], snapshot: EngineSnapshot) -> None:
    if not future.done():
        future.set_result(snapshot)
