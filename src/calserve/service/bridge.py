"""The bridge between the engine's threads and the event loop.

Owns the table of open streams and the guarantee that each member of a stream gets exactly one ending, whatever the
engine does. Must not know HTTP, tokens, or why a request ends. Life: made for one loop before the executor (which
takes it as its `Outlet`), connected to the executor's `post` after, closed when `core` orders the process to end.

Crossing the threads costs one `call_soon_threadsafe` per batch, and none while an earlier one has not run yet: a
wake-up writes to a pipe, and the loop that is behind takes all that is waiting anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from calserve.core.events import Cancel, CancelCause, ClientStalled, Event
from calserve.core.outcomes import Failure, FaultClass, FinishReason, Usage
from calserve.core.snapshot import SessionView
from calserve.core.supervisor import EXIT_DONE, EXIT_FORCED
from calserve.executor.executor import EXIT_BROKEN_INVARIANT
from calserve.executor.messages import Delivery, Ending, Inspect, Submission

Message: TypeAlias = Event | Submission | Inspect
Post: TypeAlias = Callable[[Message], None]

# A client that stops reading is given up when this many deliveries wait behind a blocked write: about five seconds
# of one stream at 50 steps a second, beyond what sockets and the server's own write buffer hold.
MAX_BLOCKED_ITEMS = 256
# What open streams are told when the process ends with a code; any other code stands for a device given up.
_TOLD_AT_EXIT = {
    EXIT_DONE: FinishReason.SHUTDOWN,
    EXIT_FORCED: FinishReason.SHUTDOWN,
    EXIT_BROKEN_INVARIANT: FinishReason.INTERNAL,
}


# Something for one member of a stream: the member's index, and what came.
Part: TypeAlias = tuple[int, Delivery | Ending]


class Stream:
    """What one client reads: the deliveries of one or more requests, in order of arrival.

    Invariants: every member has exactly one Ending and nothing after it; after a stall nothing is kept. Used on the
    event loop only, by one reader. `wakes_on_text` False lets a reader who wants the whole text sleep to the end; only
    its answers may start over.
    """

    __slots__ = (
        "_members",
        "_open",
        "_parts",
        "_waiter",
        "id",
        "is_blocked",
        "is_stalled",
        "on_stall",
        "wakes_on_text",
    )

    def __init__(self, id: str, members: Sequence[str], wakes_on_text: bool) -> None:
        self.id = id
        self.wakes_on_text = wakes_on_text
        self.is_blocked = False  # set by the reader around a write that may wait for the client
        self.is_stalled = False
        self.on_stall: Callable[[], None] | None = None  # how a reader blocked in a write is woken
        self._members = tuple(members)
        self._open = set(members)
        self._parts: list[Part] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def members(self) -> tuple[str, ...]:
        return self._members

    @property
    def open_members(self) -> tuple[str, ...]:
        """Members that have no ending yet, in order."""
        return tuple(member for member in self._members if member in self._open)

    async def wait_parts(self) -> list[Part]:
        """Everything that arrived since the last call; waits when there is nothing. Empty once all has ended."""
        while not self._parts and self._open and not self.is_stalled:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        parts, self._parts = self._parts, []
        return parts

    def push(self, index: int, item: Delivery | Ending) -> bool:
        """Keep `item` for the reader. False when the reader is blocked and the bounded buffer is full."""
        is_end = isinstance(item, Ending)
        starts_over = not isinstance(item, Ending) and item.is_anew
        assert not (starts_over and self.wakes_on_text), f"{item.request} starts over in an open stream"
        if self.is_stalled:
            self._open.discard(item.request)
            return True
        if self.is_blocked and not is_end and len(self._parts) >= MAX_BLOCKED_ITEMS:
            self.is_stalled = True
            self._parts.clear()
            self._wake()
            if self.on_stall is not None:
                self.on_stall()
            return False
        self._parts.append((index, item))
        if is_end:
            self._open.discard(item.request)
        if is_end or self.wakes_on_text:
            self._wake()
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Bridge:
    """The executor's `Outlet` on one side, streams on the other.

    Invariants: a request id stands in the table from `open` to its ending. `deliver`, `sessions_changed` and `exit`
    may be called on any one thread; everything else on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._post: Post | None = None
        self._inbox: deque[Sequence[Delivery | Ending]] = deque()
        self._is_scheduled = False
        self._streams: dict[str, tuple[Stream, int]] = {}
        self._groups: dict[str, Stream] = {}
        self._exit: asyncio.Future[int] = loop.create_future()
        self._sessions: dict[str, SessionView] = {}
        self._changed = asyncio.Event()
        self.exit_reason = ""
        self.dropped_items = 0  # for requests nobody waits for any more

    def connect(self, post: Post) -> None:
        """Name the executor's inbox. Once, before the first request."""
        self._post = post

    def post(self, message: Message) -> None:
        assert self._post is not None, "the bridge is not connected to an executor"
        self._post(message)

    # On the engine thread.

    def deliver(self, batch: Sequence[Delivery | Ending]) -> None:
        self._inbox.append(batch)
        # Set before the call and cleared before the deque is emptied, so that no batch can be left behind.
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._scatter)

    def sessions_changed(self, sessions: Sequence[SessionView]) -> None:
        self._loop.call_soon_threadsafe(self._set_sessions, tuple(sessions))

    def exit(self, code: int, reason: str) -> None:
        told = _TOLD_AT_EXIT.get(code, FinishReason.DEVICE_FAULT)
        self._loop.call_soon_threadsafe(self._set_exit, code, reason, told)

    # On the loop.

    @property
    def exit_code(self) -> asyncio.Future[int]:
        """Set once, when the process is to end."""
        return self._exit

    @property
    def open_streams(self) -> int:
        return len(self._groups)

    @property
    def sessions(self) -> tuple[SessionView, ...]:
        """Each session as it was when its state last changed."""
        return tuple(self._sessions.values())

    async def wait_sessions_changed(self) -> None:
        """Until a session's state changes, or the process is ordered to end. For one waiter."""
        self._changed.clear()
        await self._changed.wait()

    def open(self, stream: Stream) -> None:
        """Make `stream` known before its members are posted."""
        self._groups[stream.id] = stream
        for index, member in enumerate(stream.members):
            self._streams[member] = (stream, index)

    def cancel(self, stream: Stream, cause: CancelCause) -> None:
        """Ask `core` to end every member that is still open. Idempotent; the endings arrive as for any request."""
        for member in stream.open_members:
            self.post(Cancel(member, cause))

    def close(self, stream: Stream) -> None:
        """The reader is gone: what still arrives for this stream is dropped, its endings included."""
        self._groups.pop(stream.id, None)
        for member in stream.members:
            self._streams.pop(member, None)

    def find(self, id: str) -> Stream | None:
        return self._groups.get(id)

    def end_process(self, code: int, reason: str, told: FinishReason) -> None:
        """End as if `core` had ordered it, telling every open stream `told`. The first order wins."""
        self._set_exit(code, reason, told)

    def _scatter(self) -> None:
        try:
            self._hand_out()
        except AssertionError as broken:  # here it would end this call alone, and whoever stood behind it would wait
            self.end_process(EXIT_BROKEN_INVARIANT, f"an internal invariant broke: {broken}", FinishReason.INTERNAL)
            raise

    def _hand_out(self) -> None:
        self._is_scheduled = False
        streams = self._streams
        while self._inbox:
            for item in self._inbox.popleft():
                found = streams.get(item.request)
                if found is None:
                    self.dropped_items += 1
                    continue
                stream, index = found
                if isinstance(item, Ending):
                    del streams[item.request]
                if not stream.push(index, item):
                    for member in stream.open_members:
                        self.post(ClientStalled(member))

    def _set_sessions(self, sessions: tuple[SessionView, ...]) -> None:
        self._sessions |= {view.session: view for view in sessions}
        self._changed.set()

    def _set_exit(self, code: int, reason: str, told: FinishReason) -> None:
        if self._exit.done():
            return
        self.exit_reason = reason
        # Nothing more will come from the engine: whoever still waits is told here.
        failure = None if told is FinishReason.SHUTDOWN else Failure("exit", code, FaultClass.UNKNOWN, reason)
        for request, (stream, index) in tuple(self._streams.items()):
            stream.push(index, Ending(request, told, Usage(0, 0), failure=failure))
        self._streams.clear()
        self._exit.set_result(code)
        self._changed.set()
