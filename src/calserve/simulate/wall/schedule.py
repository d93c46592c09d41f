"""Who asks what, when, and how they behave: a seeded schedule that does not wait for answers.

Owns the kinds of clients and their shares. Must not know HTTP, boards, or what an answer should be. Times are seconds
from the start of the traffic. The same seed gives the same schedule.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from calserve.simulate.wall.cases import Case, Cases


class Kind(Enum):
    """How a client behaves."""

    WHOLE = "whole"  # waits for the whole answer
    STREAM = "stream"  # reads a stream to its end
    DELETE = "delete"  # reads some events, then cancels by DELETE and reads on
    LEAVE_STREAM = "leave_stream"  # reads some events, then closes the connection
    LEAVE_WHOLE = "leave_whole"  # closes the connection before the answer
    STALL = "stall"  # stops reading its stream for a while
    OVERDUE = "overdue"  # asks for more than the deadline allows
    BAD = "bad"  # sends what must be refused


# Shares in percent. More than half of all requests are ended otherwise than by an answer.
SHARES = {
    Kind.WHOLE: 18,
    Kind.STREAM: 26,
    Kind.DELETE: 14,
    Kind.LEAVE_STREAM: 12,
    Kind.LEAVE_WHOLE: 11,
    Kind.STALL: 1,
    Kind.OVERDUE: 3,
    Kind.BAD: 15,
}
INJECTED = frozenset(Kind) - {Kind.WHOLE, Kind.STREAM}
# Every so often many arrive at once, which is what fills a queue.
BURST_EVERY_S, BURST_SIZE = 20.0, 24
LEAVE_WITHIN_S = 0.4
# Several choices with log-probabilities are more than sockets hold, so that a reader that stops is felt.
STALL_S, STALL_CHOICES = 6.0, 4

# What must be refused: bodies that replace the usual one, each wrong in one way.
BAD_FIELDS: tuple[dict[str, object], ...] = (
    {"max_tokens": 0},
    {"max_tokens": "many"},
    {"temperature": -1},
    {"prompt": []},
    {"prompt": [-5]},
    {"prompt": [1 << 40]},
    {"model": "nobody"},
    {"top_p": 7},
    {"n": 100_000},
    {"no_such_option": True},
    {"max_tokens": 1 << 30},
    {"stop": ["a"] * 1000},
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. events: how many are read before cancelling or leaving. wait_s: how long a leaver or staller waits.
    bad: the fields that make it a bad one."""

    number: int
    at_s: float
    kind: Kind
    case: Case
    events: int = 0
    wait_s: float = 0.0
    bad: int = 0

    @property
    def is_streaming(self) -> bool:
        return self.kind in (Kind.STREAM, Kind.DELETE, Kind.LEAVE_STREAM, Kind.STALL)

    @property
    def choices(self) -> int:
        return STALL_CHOICES if self.kind is Kind.STALL else 1

    def fields(self) -> dict[str, object]:
        """What is asked for beside the case, as fields of the body."""
        if self.kind is Kind.BAD:
            return BAD_FIELDS[self.bad]
        if self.kind is Kind.STALL:
            return {"logprobs": 5, "n": STALL_CHOICES}
        return {}


def arrivals(seed: int, rate: float, until_s: float, cases: Cases) -> Iterator[Arrival]:
    """Requests in order of time, up to `until_s`: Poisson at `rate` a second, and bursts."""
    # A string seed is hashed by `random` itself, so PYTHONHASHSEED cannot move it.
    chance = random.Random(f"wall/{seed}")
    number, at_s, next_burst_s, in_burst = 0, 0.0, BURST_EVERY_S, 0
    kinds, weights = list(SHARES), list(SHARES.values())
    while True:
        if in_burst:
            in_burst -= 1
        else:
            at_s += chance.expovariate(rate)
            if at_s >= next_burst_s:
                next_burst_s += BURST_EVERY_S
                in_burst = BURST_SIZE
        if at_s >= until_s:
            return
        kind = chance.choices(kinds, weights)[0]
        yield Arrival(
            number=number,
            at_s=at_s,
            kind=kind,
            case=cases.draw(chance, is_long=kind in (Kind.STALL, Kind.OVERDUE)),
            events=chance.randint(1, 8),
            wait_s=STALL_S if kind is Kind.STALL else chance.uniform(0.0, LEAVE_WITHIN_S),
            bad=chance.randrange(len(BAD_FIELDS)),
        )
        number += 1
