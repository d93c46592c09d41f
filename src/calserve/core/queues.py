"""The queues: who waits for a lane, who is ready to run, and whose turn it is.

Owns: the waiting line (per tenant, long prompts apart), the ready sets (decode and three prefill classes) and
the weighted round robin between them. Must not know: why a request may or may not go; that is `admission` and
`plan`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from calserve.core.config import SchedulerConfig
from calserve.core.request import PREFILL_QUEUES, Queue, Request


class WaitingLine:
    """Requests without a lane, first come first served within (tenant, long or not).

    Long prompts stand apart so that a cap on them never blocks short ones of the same tenant.
    """

    __slots__ = ("_lines", "prompt_tokens", "requests")

    def __init__(self) -> None:
        self._lines: dict[tuple[str, bool], OrderedDict[str, Request]] = {}
        self.requests = 0
        self.prompt_tokens = 0

    @staticmethod
    def _key(request: Request) -> tuple[str, bool]:
        return request.tenant.name, request.queue is Queue.LONG

    def add(self, request: Request, *, in_front: bool = False) -> None:
        line = self._lines.setdefault(self._key(request), OrderedDict())
        line[request.name] = request
        if in_front:
            line.move_to_end(request.name, last=False)
        self.requests += 1
        self.prompt_tokens += request.prompt_tokens
        request.tenant.waiting += 1
        request.tenant.waiting_tokens += request.prompt_tokens

    def remove(self, request: Request) -> None:
        key = self._key(request)
        line = self._lines[key]
        del line[request.name]
        if not line:
            del self._lines[key]
        self.requests -= 1
        self.prompt_tokens -= request.prompt_tokens
        request.tenant.waiting -= 1
        request.tenant.waiting_tokens -= request.prompt_tokens

    def heads(self) -> Iterator[Request]:
        """First of each line."""
        for line in self._lines.values():
            yield next(iter(line.values()))

    def __iter__(self) -> Iterator[Request]:
        for line in self._lines.values():
            yield from line.values()


class Turns:
    """Smooth weighted round robin: over any stretch, a class that is always eligible gets its weight's share.

    Each pick credits every eligible class with its weight and debits the winner with the sum, so shares need no
    cycle and no class waits longer than sum/weight picks (its minimum share).
    """

    __slots__ = ("_credit", "_weight")

    def __init__(self, config: SchedulerConfig) -> None:
        self._weight = {
            Queue.DECODE: config.decode_weight,
            Queue.SHORT: config.short_prefill_weight,
            Queue.MEDIUM: config.medium_prefill_weight,
            Queue.LONG: config.long_prefill_weight,
        }
        self._credit = dict.fromkeys(self._weight, 0)

    def pick(self, eligible: Sequence[Queue]) -> Queue:
        """One of `eligible` (not empty), in the order of `Queue` on a tie."""
        if len(eligible) == 1:
            return eligible[0]
        credit = self._credit
        best = eligible[0]
        total = 0
        for queue in eligible:
            credit[queue] += self._weight[queue]
            total += self._weight[queue]
            if credit[queue] > credit[best]:
                best = queue
        credit[best] -= total
        return best


class ReadySets:
    """Admitted requests that could be in the next job. At most one entry per lane, so scans here are O(lanes).

    `decode` keeps the order in which rows became ready; the oldest is first.
    """

    __slots__ = ("decode", "prefill", "prefills")

    def __init__(self) -> None:
        self.decode: dict[str, Request] = {}
        self.prefill: dict[Queue, dict[str, Request]] = {queue: {} for queue in PREFILL_QUEUES}
        self.prefills = 0  # over the three classes

    def add_decode(self, request: Request) -> None:
        self.decode[request.name] = request

    def add_prefill(self, request: Request) -> None:
        self.prefill[request.queue][request.name] = request
        self.prefills += 1

    def discard(self, request: Request) -> None:
        if self.decode.pop(request.name, None) is not None:
            return
        if self.prefill[request.queue].pop(request.name, None) is not None:
            self.prefills -= 1

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens not yet computed, over every ready prefill."""
        return sum(request.remaining_prompt for line in self.prefill.values() for request in line.values())

    def __len__(self) -> int:
        return len(self.decode) + self.prefills

    def __iter__(self) -> Iterator[Request]:
        yield from self.decode.values()
        for queue in PREFILL_QUEUES:
            yield from self.prefill[queue].values()
