"""What clients are told of the engine's orders: deliveries and endings, in order.

Owns: of which requests something was delivered, and which of them start over. Must not know: sequences, jobs, the
board. Life of a request here: heard with its first delivery; anew from the moment a new sequence is made for it until
the next delivery, which says so; forgotten with its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from calserve.core.commands import Command, Emit, Finish
from calserve.core.outcomes import Failure, FaultClass, FinishReason, Usage
from calserve.executor.messages import Delivery, Ending


@dataclass(slots=True)
class Telling:
    """On the engine thread. heard: something was delivered since it began, or began anew. anew: its next delivery is
    the first after it started over. since: the first job of its newest start; what an earlier one gave is told no more,
    though core named it in the very turn in which the request went back and out again. Invariants: heard and anew are
    disjoint, and all name open requests only."""

    heard: set[str] = field(default_factory=set)
    anew: set[str] = field(default_factory=set)
    since: dict[str, int] = field(default_factory=dict)

    def begins_anew(self, request: str, job: int) -> None:
        """Its sequence was lost and is made again, for `job`. Where nothing was delivered nobody will notice."""
        self.since[request] = job
        if request in self.heard:
            self.heard.remove(request)
            self.anew.add(request)

    def batch(self, commands: Iterable[Command], said: Mapping[tuple[int, int], Delivery]) -> list[Delivery | Ending]:
        """Of these orders what a client is told. said: deliveries by (job, row); one that no Emit names is dropped."""
        batch: list[Delivery | Ending] = []
        for command in commands:
            if isinstance(command, Emit):
                delivery = said.get((command.job, command.row))
                if delivery is not None and command.job >= self.since.get(delivery.request, 0):
                    batch.append(self._marked(delivery))
            elif isinstance(command, Finish):
                self.heard.discard(command.request)
                self.anew.discard(command.request)
                self.since.pop(command.request, None)
                batch.append(Ending(command.request, command.reason, command.usage, command.refusal, command.failure))
        return batch

    def _marked(self, delivery: Delivery) -> Delivery:
        self.heard.add(delivery.request)
        if delivery.request not in self.anew:
            return delivery
        self.anew.remove(delivery.request)
        return replace(delivery, is_anew=True)


def broken_off(requests: Iterable[str]) -> list[Delivery | Ending]:
    """What everybody is told whose engine stopped in the middle of a step."""
    failure = Failure("engine", 0, FaultClass.PROGRAMMING, "an internal invariant broke")
    return [Ending(request, FinishReason.INTERNAL, Usage(0, 0), None, failure) for request in requests]
