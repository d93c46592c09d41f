"""The tokenizing pool: the only threads of this ring.

Owns a bounded number of threads and a bounded line in front of them, so that a flood of long prompts, or of choices
with many stop strings, cannot hold the event loop, nor grow memory. Must not know prompts, templates or models: it
runs what it is given. Life: made once, closed at exit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# One thread keeps two small cores free for the board; `encode_batch` uses the tokenizer's own threads anyway.
WORKERS = 1
# As many as may wait for admission by default (seed 002, section 15): tokenizing is not the narrower door.
MAX_WAITING = 128


class TokenizingPool:
    """Runs short CPU work beside the event loop. `run` is called on the loop only."""

    def __init__(self, workers: int = WORKERS, max_waiting: int = MAX_WAITING) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="tokenize")
        self._max_waiting = max_waiting
        self._waiting = 0

    @property
    def max_waiting(self) -> int:
        return self._max_waiting

    @property
    def is_full(self) -> bool:
        return self._waiting >= self._max_waiting

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, run on a thread; its exceptions come through. Not to be called when full."""
        assert not self.is_full, "the tokenizing pool is full"
        self._waiting += 1
        loop = asyncio.get_running_loop()
        future = self._threads.submit(work)
        # Counted until the thread is done with it: the work of a client that left still takes its place in line.
        future.add_done_callback(lambda _: self._leave_from_thread(loop))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _leave_from_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        # At exit the loop may be gone before the thread is done; then nobody counts any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        self._waiting -= 1
