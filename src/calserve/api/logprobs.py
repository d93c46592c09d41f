"""Log-probabilities in OpenAI's two shapes.

Owns how a token is shown: its text, its bytes, and what stands for bytes that are no text. Must not know how the
numbers were made. The token that ended the request is not part of its text, so it is not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from calserve.service.terms import Choice


@dataclass(frozen=True, slots=True)
class TokenView:
    """token_bytes: what one token looks like alone. hidden: ids that end a request. top: as the request asked."""

    token_bytes: Callable[[int], bytes]
    hidden: Collection[int]
    top: int

    def text(self, token: int) -> str:
        """OpenAI's form for a token that is part of a character: `bytes:\\xe2\\x82`."""
        raw = self.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(view: TokenView, choices: Sequence[Choice]) -> dict[str, Any]:
    """`choices[].logprobs` of chat completions."""
    content = []
    for choice in choices:
        if choice.token in view.hidden:
            continue
        entry = _chat_entry(view, choice.token, choice.logprob or 0.0)
        entry["top_logprobs"] = [_chat_entry(view, token, value) for token, value in choice.top[: view.top]]
        content.append(entry)
    return {"content": content, "refusal": None}


def completion_logprobs(view: TokenView, choices: Sequence[Choice], offsets: Sequence[int]) -> dict[str, Any]:
    """`choices[].logprobs` of completions. offsets: where in the choice's text each token's text begins, parallel."""
    pairs = [(c, offset) for c, offset in zip(choices, offsets, strict=True) if c.token not in view.hidden]
    shown = [choice for choice, _ in pairs]
    return {
        "tokens": [view.text(choice.token) for choice in shown],
        "token_logprobs": [choice.logprob for choice in shown],
        "top_logprobs": [
            {view.text(token): value for token, value in (choice.top or ((choice.token, choice.logprob),))}
            for choice in shown
        ],
        "text_offset": [offset for _, offset in pairs],
    }


def _chat_entry(view: TokenView, token: int, value: float) -> dict[str, Any]:
    return {"token": view.text(token), "logprob": value, "bytes": list(view.token_bytes(token))}
