"""Deadlines of live requests, earliest first.

A request that ended leaves its entry behind; entries of the dead are dropped when they surface, or all at once
when they are the majority, so a storm of cancels does not grow the heap.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from calserve.core.request import Request

# dead entries tolerated before a sweep, beside as many dead as alive
SLACK = 64


class Deadlines:
    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._live = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        heappush(self._heap, (request.deadline_ns, request.ordinal, request))
        self._live += 1

    def drop(self) -> None:
        """One of the requests became terminal."""
        self._live -= 1
        if len(self._heap) > 2 * self._live + SLACK:
            self._heap = [entry for entry in self._heap if not entry[2].is_terminal]
            heapify(self._heap)

    def next_ns(self) -> int | None:
        heap = self._heap
        while heap and heap[0][2].is_terminal:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_expired(self, now_ns: int) -> Request | None:
        """The next live request whose deadline is not after `now_ns`; call until None."""
        when = self.next_ns()
        return heappop(self._heap)[2] if when is not None and when <= now_ns else None
