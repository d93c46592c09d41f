"""One choice of a whole answer, gathered from what the engine delivers of it.

Owns: what the client will get at the end. Must not know: HTTP, shapes, other choices. Life: made with the request,
takes every delivery and the one ending, then is read. An answer that starts over is gathered anew: what came before
was of a generation that is gone, and no client has seen it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.core.outcomes import FinishReason, Usage
from calserve.executor.messages import Delivery, Ending
from calserve.sampling.sampler import Choice

NO_USAGE = Usage(0, 0)


@dataclass(slots=True)
class Answer:
    """text: pieces, to be joined. choices, offsets: parallel, see `Delivery`. reason: None until it has ended."""

    text: list[str] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    usage: Usage = NO_USAGE

    def take(self, item: Delivery | Ending) -> None:
        """The next thing that was said of it."""
        if isinstance(item, Ending):
            self.reason, self.usage = item.reason, item.usage
            return
        if item.is_anew:
            self.drop()
        self.text.append(item.text)
        self.choices.extend(item.choices)
        self.offsets.extend(item.offsets)

    def drop(self) -> None:
        """It starts over."""
        self.text.clear()
        self.choices.clear()
        self.offsets.clear()
