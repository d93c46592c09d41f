"""The two endpoints' answers: whole bodies and stream chunks, as OpenAI shapes them.

Owns every byte of an answer but its text. Must not know streams or sockets. A `Shape` is made per request; the parts
of a chunk that do not change are encoded once, so that a token costs one JSON string and one join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from calserve.api.logprobs import TokenView, chat_logprobs, completion_logprobs
from calserve.service.answer import Answer
from calserve.service.terms import Choice, FinishReason, Usage

_encode = msgspec.json.Encoder().encode
_TEXT = "\x00text"
_TEXT_JSON = _encode(_TEXT)

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Head:
    """What every part of one answer repeats. created: Unix seconds. sharing: members per prompt (n)."""

    id: str
    created: int
    model: str
    sharing: int = 1


class Shape:
    """One endpoint's shape for one request."""

    chunk_object = ""
    body_object = ""
    prompt_field = ""

    def __init__(self, head: Head, has_usage_chunk: bool, view: TokenView | None) -> None:
        self.head = head
        self.has_usage_chunk = has_usage_chunk
        self.view = view
        self._cuts: dict[int, tuple[bytes, bytes]] = {}

    # What the endpoints differ in.

    def first(self, index: int) -> bytes:
        """The event before a choice's first text; b"" when the endpoint has none."""
        raise AssertionError("a Shape is one of its endpoints")

    def _delta(self, index: int, text: str | None, logprobs: Any, reason: str | None) -> dict[str, Any]:
        raise AssertionError("a Shape is one of its endpoints")

    def _logprobs(self, choices: Sequence[Choice], offsets: Sequence[int]) -> Any:
        raise AssertionError("a Shape is one of its endpoints")

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        raise AssertionError("a Shape is one of its endpoints")

    # What they share.

    def text(self, index: int, text: str, choices: Sequence[Choice], offsets: Sequence[int] = ()) -> bytes:
        """The event that carries `text`; the hot path of a stream. offsets: parallel to choices, see `Delivery`."""
        if self.view is not None:
            return self._event(self._delta(index, text, self._logprobs(choices, offsets), None))
        cut = self._cuts.get(index)
        if cut is None:
            before, _, after = self._event(self._delta(index, _TEXT, None, None)).rpartition(_TEXT_JSON)
            cut = self._cuts[index] = (before, after)
        return cut[0] + _encode(text) + cut[1]

    def finish(self, index: int, reason: FinishReason) -> bytes:
        return self._event(self._delta(index, None, None, reason.value))

    def usage(self, usages: Sequence[Usage]) -> bytes:
        """The last event before the end, with no choices; b"" unless it was asked for."""
        if not self.has_usage_chunk:
            return b""
        return b"data: " + _encode(self._frame(self.chunk_object, [], self._sum(usages))) + b"\n\n"

    def body(self, answers: Sequence[Answer]) -> bytes:
        """The whole answer."""
        choices = [self._choice(i, answer) for i, answer in enumerate(answers)]
        return _encode(self._frame(self.body_object, choices, self._sum([a.usage for a in answers])))

    def _event(self, choice: dict[str, Any]) -> bytes:
        frame = self._frame(self.chunk_object, [choice], None)
        if not self.has_usage_chunk:
            del frame["usage"]
        return b"data: " + _encode(frame) + b"\n\n"

    def _frame(self, object: str, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> dict[str, Any]:
        head = self.head
        return {
            "id": head.id,
            "object": object,
            "created": head.created,
            "model": head.model,
            "choices": choices,
            "usage": usage,
        }

    def _sum(self, usages: Sequence[Usage]) -> dict[str, int]:
        """Choices that share a prompt count it once, as OpenAI does."""
        prompt = sum(usage.prompt_tokens for usage in usages[:: self.head.sharing])
        completion = sum(usage.completion_tokens for usage in usages)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class ChatShape(Shape):
    """`chat.completion` and its chunks."""

    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"
    prompt_field = "messages"

    def first(self, index: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self._event({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})

    def _delta(self, index: int, text: str | None, logprobs: Any, reason: str | None) -> dict[str, Any]:
        delta = {} if text is None else {"content": text}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, choices: Sequence[Choice], offsets: Sequence[int]) -> Any:
        return chat_logprobs(self.view, choices) if self.view is not None else None

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(answer.text), "refusal": None},
            "logprobs": self._logprobs(answer.choices, answer.offsets),
            "finish_reason": answer.reason.value if answer.reason is not None else None,
        }


class CompletionShape(Shape):
    """`text_completion`."""

    chunk_object = "text_completion"
    body_object = "text_completion"
    prompt_field = "prompt"

    def first(self, index: int) -> bytes:
        return b""

    def _delta(self, index: int, text: str | None, logprobs: Any, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text or "", "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, choices: Sequence[Choice], offsets: Sequence[int]) -> Any:
        return completion_logprobs(self.view, choices, offsets) if self.view is not None else None

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {
            "index": index,
            "text": "".join(answer.text),
            "logprobs": self._logprobs(answer.choices, answer.offsets),
            "finish_reason": answer.reason.value if answer.reason is not None else None,
        }
