"""One open stream: parts in, server-sent events out.

Owns the order of a stream's events and its one end: after the last choice has finished, the usage chunk (when asked
for) and `[DONE]`; or, when a choice ends badly, one event with OpenAI's error object and nothing after it. An
error is not followed by `[DONE]`: that word says that the answer is complete. Must not know sockets.
"""

from __future__ import annotations

from collections.abc import Iterable

from calserve.api.errors import ApiError, ending_error
from calserve.api.shapes import DONE, Shape
from calserve.service.terms import Delivery, Ending, Usage


class EventWriter:
    """Invariants: `render` after the end gives nothing; the events of one call leave in one write."""

    def __init__(self, shape: Shape, members: int) -> None:
        self._shape = shape
        self._usages = [Usage(0, 0)] * members
        self._unfinished = members
        self._begun = [False] * members
        self.is_ended = False

    def render(self, parts: Iterable[tuple[int, Delivery | Ending]]) -> bytes:
        """The events of `parts`, joined; b"" when there is nothing to say yet."""
        if self.is_ended:
            return b""
        events: list[bytes] = []
        shape = self._shape
        for index, item in parts:
            if not self._begun[index]:
                self._begun[index] = True
                events.append(shape.first(index))
            if isinstance(item, Delivery):
                # Text may be held back (half a character, half a stop string); log-probabilities are not.
                if item.text or item.choices:
                    events.append(shape.text(index, item.text, item.choices, item.offsets))
                continue
            error = ending_error(item, shape.prompt_field)
            if error is not None:
                self.is_ended = True
                events.append(error_event(error))
                break
            events.append(shape.finish(index, item.reason))
            self._usages[index] = item.usage
            self._unfinished -= 1
            if not self._unfinished:
                self.is_ended = True
                events += (shape.usage(self._usages), DONE)
        return b"".join(events)


def error_event(error: ApiError) -> bytes:
    return b"data: " + error.body + b"\n\n"
