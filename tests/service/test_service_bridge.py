"""The bridge and its streams, on a loop of their own; the engine's thread is played by a real one."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from calserve.core.events import Cancel, CancelCause, ClientStalled
from calserve.core.outcomes import FinishReason, Usage
from calserve.executor.executor import EXIT_BROKEN_INVARIANT
from calserve.executor.messages import Delivery, Ending
from calserve.sampling.sampler import Choice
from calserve.service.answer import Answer
from calserve.service.bridge import MAX_BLOCKED_ITEMS, Bridge, Stream
from calserve.service.tokenizing import TokenizingPool

END = Usage(1, 1)


def text(request: str, piece: str = "x") -> Delivery:
    return Delivery(request, piece, (1,))


def end(request: str, reason: FinishReason = FinishReason.STOP) -> Ending:
    return Ending(request, reason, END)


def on_loop(body: Callable[[Bridge, list[Any]], Awaitable[None]]) -> None:
    async def run() -> None:
        bridge, posts = Bridge(asyncio.get_running_loop()), []
        bridge.connect(posts.append)
        async with asyncio.timeout(10):
            await body(bridge, posts)

    asyncio.run(run())


def opened(bridge: Bridge, *members: str, wakes: bool = True) -> Stream:
    stream = Stream("s", members, wakes)
    bridge.open(stream)
    return stream


def test_stream_gets_its_own_items_in_order() -> None:
    async def body(bridge: Bridge, posts: list[Any]) -> None:
        stream = opened(bridge, "a", "b")
        batch = [text("b", "1"), text("other"), text("a", "2"), end("b"), text("a", "3"), end("a")]
        thread = threading.Thread(target=bridge.deliver, args=(batch,))
        thread.start()
        thread.join()
        parts = await stream.wait_parts()
        assert parts == [(1, batch[0]), (0, batch[2]), (1, batch[3]), (0, batch[4]), (0, batch[5])]
        assert stream.open_members == ()
        assert await stream.wait_parts() == []
        assert bridge.dropped_items == 1

    on_loop(body)


def test_batches_that_wait_are_taken_with_one_wake_up() -> None:
    async def body(bridge: Bridge, posts: list[Any]) -> None:
        calls = []
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args, **kw: calls.append(args) or original(*args, **kw)  # type: ignore[method-assign]
        stream = opened(bridge, "a")
        for i in range(100):
            bridge.deliver([text("a", str(i))])
        parts = await stream.wait_parts()
        assert [item.text for _, item in parts] == [str(i) for i in range(100)]
        assert len(calls) == 1
        bridge.deliver([end("a")])
        assert len(await stream.wait_parts()) == 1
        assert len(calls) == 2

    on_loop(body)


def test_reader_of_a_whole_answer_sleeps_until_an_end() -> None:
    async def body(bridge: Bridge, posts: list[Any]) -> None:
        stream = opened(bridge, "a", wakes=False)
        reader = asyncio.create_task(stream.wait_parts())
        for i in range(MAX_BLOCKED_ITEMS * 2):
            bridge.deliver([text("a", str(i))])
            await asyncio.sleep(0)
        assert not reader.done()
        bridge.deliver([end("a")])
        assert len(await reader) == MAX_BLOCKED_ITEMS * 2 + 1

    on_loop(body)


def test_blocked_reader_is_stalled_at_the_bound_and_keeps_nothing() -> None:
    async def body(bridge: Bridge, posts: list[Any]) -> None:
        stream = opened(bridge, "a", "b")
        stalls = []
        stream.on_stall = lambda: stalls.append(True)
        stream.is_blocked = True
        bridge.deliver([text("a")] * MAX_BLOCKED_ITEMS)
        await asyncio.sleep(0)
        assert posts == []
        bridge.deliver([text("a"), text("a"), text("b")])
        await asyncio.sleep(0)
        assert posts == [ClientStalled("a"), ClientStalled("b")]
        assert stalls == [True]
        assert await stream.wait_parts() == []
        bridge.deliver([text("a")] * 1000 + [end("a"), end("b")])
        await asyncio.sleep(0)
        assert posts == [ClientStalled("a"), ClientStalled("b")]
        assert await stream.wait_parts() == []
        assert stream.open_members == ()

    on_loop(body)


def test_reader_that_is_not_blocked_is_never_stalled_by_a_burst() -> None:
    async def body(bridge: Bridge, posts: list[Any]) -> None:
        stream = opened(bridge, "a")
        bridge.deliver([text("a")] * MAX_BLOCKED_ITEMS * 4)
        assert len(await stream.wait_parts()) == MAX_BLOCKED_ITEMS * 4
        assert posts == []

    on_loop(body)


def test_cancel_asks_for_open_members_only_and_close_drops_what_is_late() -> None:
    async def body(bridge: Bridge, posts: list[Any]) -> None:
        stream = opened(bridge, "a", "b")
        bridge.deliver([end("a")])
        await asyncio.sleep(0)
        bridge.cancel(stream, CancelCause.ASKED)
        assert posts == [Cancel("b", CancelCause.ASKED)]
        assert bridge.find("s") is stream
        bridge.close(stream)
        assert bridge.find("s") is None
        bridge.deliver([text("b"), end("b")])
        await asyncio.sleep(0)
        assert bridge.dropped_items == 2

    on_loop(body)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (0, FinishReason.SHUTDOWN),
        (70, FinishReason.INTERNAL),
        (75, FinishReason.DEVICE_FAULT),
        (76, FinishReason.SHUTDOWN),
    ],
)
def test_exit_ends_every_open_member_once_and_the_first_exit_wins(code: int, reason: FinishReason) -> None:
    async def body(bridge: Bridge, posts: list[Any]) -> None:
        stream = opened(bridge, "a", "b")
        bridge.deliver([text("a"), end("b")])
        bridge.exit(code, "why")
        bridge.exit(3, "later")
        assert await bridge.exit_code == code
        bridge.deliver([end("a")])
        assert bridge.exit_reason == "why"
        parts = []
        while more := await stream.wait_parts():
            parts += more
        endings = [(index, item.reason) for index, item in parts if isinstance(item, Ending)]
        assert endings == [(1, FinishReason.STOP), (0, reason)]

    on_loop(body)


def test_tokenizing_pool_counts_until_its_thread_is_done() -> None:
    async def body() -> None:
        pool = TokenizingPool(workers=1, max_waiting=2)
        gate = threading.Event()
        first = asyncio.create_task(pool.run(lambda: gate.wait(10)))
        second = asyncio.create_task(pool.run(lambda: 2))
        await asyncio.sleep(0)
        assert pool.is_full
        first.cancel()
        await asyncio.sleep(0)
        assert pool.is_full  # the thread is still busy for a client that left
        with pytest.raises(AssertionError):
            await pool.run(lambda: 3)
        gate.set()
        assert await second == 2
        pool.close()

    asyncio.run(body())


def test_whole_answer_may_start_over_and_a_stream_may_not() -> None:
    """The stream is the engine's mistake: everybody is told at once that this server failed, and the process ends."""

    async def body(bridge: Bridge, posts: list[Any]) -> None:
        whole, stream = Stream("w", ("a",), False), Stream("s", ("b", "c"), True)
        for each in (whole, stream):
            bridge.open(each)
        anew = Delivery("a", "x", (1,), is_anew=True)
        bridge.deliver([text("a"), anew])
        await asyncio.sleep(0)
        assert not bridge.exit_code.done()
        broken: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        bridge.deliver([text("b"), Delivery("b", "x", (1,), is_anew=True), text("c")])
        assert await bridge.exit_code == EXIT_BROKEN_INVARIANT
        assert "b starts over in an open stream" in bridge.exit_reason
        assert [str(context["exception"]) for context in broken] == ["b starts over in an open stream"]
        assert [item for _, item in await whole.wait_parts()][:2] == [text("a"), anew]
        ends = {item.request: item.reason for _, item in await stream.wait_parts() if isinstance(item, Ending)}
        assert ends == {"b": FinishReason.INTERNAL, "c": FinishReason.INTERNAL}

    on_loop(body)


def test_answer_that_starts_over_is_gathered_anew() -> None:
    answer, other = Answer(), Answer()
    choices = tuple(Choice(token, -0.5, ()) for token in range(3))
    answer.take(Delivery("a", "old", (1, 2), choices[:2], (0, 1)))
    other.take(Delivery("b", "kept", (1,), choices[:1], (0,)))
    answer.take(Delivery("a", "n", (3,), choices[2:], (0,), is_anew=True))
    answer.take(Delivery("a", "ew", (4,), choices[:1], (1,)))
    answer.take(Ending("a", FinishReason.LENGTH, Usage(1, 2)))
    assert ("".join(answer.text), answer.choices, answer.offsets) == ("new", [choices[2], choices[0]], [0, 1])
    assert (answer.reason, answer.usage) == (FinishReason.LENGTH, Usage(1, 2))
    assert (other.text, other.reason) == (["kept"], None)
