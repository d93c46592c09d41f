"""What a request costs the event loop, and when the process gives up on its engine; the engine is a list."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers

from calserve.core.config import SchedulerConfig
from calserve.core.events import Shutdown
from calserve.core.outcomes import FinishReason, RefusalKind
from calserve.executor.messages import Ending, Submission
from calserve.sampling.params import parse_sampling
from calserve.service import generation
from calserve.service.bridge import Bridge, Stream
from calserve.service.catalogue import Catalogue, ServedModel
from calserve.service.generation import Ask, Refused
from calserve.service.service import Service
from calserve.service.tokenizing import TokenizingPool
from calserve.text import Tokenizer, stops

SECOND = 1_000_000_000


class ToyPackage:
    hash, vocab_size, context, profiles, eos_token_ids = "a" * 64, 256, 64, (1,), ()


def byte_tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = HfTokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    return Tokenizer(raw.to_str(), eos_ids=())


def on_loop(body: Callable[[Service, list[Any]], Awaitable[None]], pool: TokenizingPool | None = None) -> None:
    async def run() -> None:
        bridge, posts = Bridge(asyncio.get_running_loop()), []
        bridge.connect(posts.append)
        catalogue = Catalogue([ServedModel("toy", ToyPackage(), byte_tokenizer(), None)])
        scheduler = SchedulerConfig(overdue_grace_ns=3 * SECOND)
        service = Service(bridge, catalogue, scheduler, lambda: 7 * SECOND, pool)
        await body(service, posts)
        service.close()

    asyncio.run(run())


def ask(**changes: Any) -> Ask:
    values = {"label": "cmpl", "model": "toy", "sampling": parse_sampling({"temperature": 0}), "arrived_ns": 0}
    return Ask(**(values | {"is_streaming": True, "prompts": ("hi",), "max_new_tokens": 4} | changes))


@pytest.mark.parametrize("prompts", [("hi",), ((71, 72),)], ids=["text", "ids"])
def test_choices_are_built_beside_the_loop_and_share_one_automaton(
    prompts: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    automata, sequences = [], []

    class Automaton(stops._Automaton):
        def __init__(self, stops: tuple[str, ...]) -> None:
            automata.append(threading.current_thread().name)
            super().__init__(stops)

    class Sequence(generation.Sequence):
        def __init__(self, *args: Any) -> None:
            sequences.append(threading.current_thread().name)
            super().__init__(*args)

    monkeypatch.setattr(stops, "_Automaton", Automaton)
    monkeypatch.setattr(generation, "Sequence", Sequence)
    stops._automaton.cache_clear()

    async def body(service: Service, posts: list[Any]) -> None:
        stream = await service.submit(ask(prompts=prompts, n=128, stops=("never there", "nor there")))
        assert isinstance(stream, Stream)
        assert len(stream.members) == len(set(stream.members)) == 128
        assert [post.event.request for post in posts if isinstance(post, Submission)] == list(stream.members)
        assert {tuple(post.sequence.prompt) for post in posts} == {(71, 72)}  # "hi": the alphabet begins at "!", 33

    on_loop(body)
    # The pool's threads are named so; the loop's is not.
    assert len(automata) == 1
    assert len(sequences) == 128
    assert all(name.startswith("tokenize") for name in automata + sequences)


def test_pool_that_is_full_refuses_token_ids_too() -> None:
    pool, gate = TokenizingPool(workers=1, max_waiting=1), threading.Event()

    async def body(service: Service, posts: list[Any]) -> None:
        first = asyncio.create_task(pool.run(lambda: gate.wait(10)))
        await asyncio.sleep(0)
        refused = await service.submit(ask(prompts=((104,),)))
        assert isinstance(refused, Refused)
        assert (refused.refusal.kind, refused.refusal.limit) == (RefusalKind.QUEUE_FULL, 1)
        gate.set()
        await first
        assert posts == []

    on_loop(body, pool)


def test_engine_is_given_up_only_after_the_drain_and_every_grace() -> None:
    """`core` orders 75 or 76 as late as the drain and the overdue grace; only after that is silence a fault."""

    async def body(service: Service, posts: list[Any]) -> None:
        calls: list[float] = []
        loop = asyncio.get_running_loop()
        loop.call_later = lambda delay, *args: calls.append(delay)  # type: ignore[method-assign,assignment]
        service.begin_shutdown(4 * SECOND)
        assert posts == [Shutdown(11 * SECOND)]
        assert calls == [9.0]  # 4 s of drain, 3 s of grace, 2 s for the order to arrive
        service.begin_shutdown(4 * SECOND)  # asked again: now
        assert posts == [Shutdown(11 * SECOND), Shutdown(7 * SECOND)]
        assert calls == [9.0, 5.0]

    on_loop(body)


def test_server_is_live_during_an_orderly_end_and_stuck_after_another() -> None:
    async def drained(service: Service, posts: list[Any]) -> None:
        service.begin_shutdown(4 * SECOND)
        service._bridge.end_process(0, "drained", FinishReason.SHUTDOWN)
        assert (await service.liveness()).is_live

    async def broken(service: Service, posts: list[Any]) -> None:
        service._bridge.end_process(70, "broken", FinishReason.INTERNAL)
        assert not (await service.liveness()).is_live

    on_loop(drained)
    on_loop(broken)


def test_deadline_holds_in_the_line_before_the_tokenizing_pool() -> None:
    pool, gate = TokenizingPool(workers=1, max_waiting=3), threading.Event()

    async def body(service: Service, posts: list[Any]) -> None:
        first = asyncio.create_task(pool.run(lambda: gate.wait(10)))
        await asyncio.sleep(0)
        # Now is 7 s; the deadline is 120 s after arrival, so this one's passed 3 s ago.
        stream = await service.submit(ask(arrived_ns=-116 * SECOND))
        assert isinstance(stream, Stream)
        with service.reading(stream):
            ((index, end),) = await stream.wait_parts()
        assert isinstance(end, Ending)
        assert (index, end.reason) == (0, FinishReason.DEADLINE)
        gate.set()
        await first
        assert posts == []

    on_loop(body, pool)


@pytest.mark.parametrize(
    ("n", "is_streaming", "is_refused"), [(170, False, False), (171, False, True), (171, True, False)]
)
def test_whole_answer_with_too_many_log_probabilities_is_refused(n: int, is_streaming: bool, is_refused: bool) -> None:
    """65,536 entries: 170 choices of 64 tokens and 6 numbers each are 65,280, one more choice is too much."""

    async def body(service: Service, posts: list[Any]) -> None:
        sampling = parse_sampling({"temperature": 0, "logprobs": 5})
        made = await service.submit(ask(n=n, sampling=sampling, max_new_tokens=64, is_streaming=is_streaming))
        assert isinstance(made, Refused) == is_refused
        if isinstance(made, Refused):
            assert (made.refusal.kind, made.field) == (RefusalKind.INVALID, "logprobs")
            assert "65664" in made.message
            assert "65536" in made.message

    on_loop(body)


@pytest.mark.parametrize("is_streaming", [True, False])
def test_engine_is_told_whether_the_client_sees_nothing_before_the_end(is_streaming: bool) -> None:
    async def body(service: Service, posts: list[Any]) -> None:
        await service.submit(ask(n=2, is_streaming=is_streaming))
        assert [post.event.is_whole for post in posts] == [not is_streaming] * 2

    on_loop(body)
