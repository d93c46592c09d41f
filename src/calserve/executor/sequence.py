"""One request's contents: its ids, its sampler, its text.

Life: built by the service with the request, moved to the engine thread with the submission, into a job for as
long as the job runs, back with its completion, dropped with the request's end. Only the completion step
advances it, and only for a job that succeeded. `core` knows nothing of it but counts.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import NamedTuple

from calserve.core.outcomes import RowEnd
from calserve.sampling.params import SamplingParams
from calserve.sampling.sampler import Choice, Sampler
from calserve.text.stream import TextStream
from calserve.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """How a request generates. `max_new_tokens` is already resolved against the context.

    vocab_size: width of the logits, not the tokenizer's size. min_tokens: before this many were generated, ending
    tokens are suppressed and stop strings not looked for. ignore_eos: end-of-text never ends the request. eos_ids
    end silently; stop_token_ids likewise, and both count as generated.
    """

    sampling: SamplingParams
    max_new_tokens: int
    vocab_size: int
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advance:
    """What one sampled token did: the end it brought, and what may leave now.

    choices, offsets: log-probabilities of the tokens whose text has left, where they were asked for; see `Delivery`.
    """

    end: RowEnd
    text: str
    choices: tuple[Choice, ...] = ()
    offsets: tuple[int, ...] = ()


class _Held(NamedTuple):
    """A choice until its text has left: characters begin .. end of the output."""

    choice: Choice
    begin: int
    end: int


class Origin(NamedTuple):
    """What a sequence is made of: immutable, so that the engine thread may keep it while the sequence is away."""

    request: str
    prompt: tuple[int, ...]
    params: GenerationParams
    tokenizer: Tokenizer


class Sequence:
    """Invariants: `len(prompt) + len(generated)` is one more than the KV length after a decode; the text that
    left so far is a prefix of the text of the whole output. One owner at a time.
    """

    __slots__ = (
        "_ends",
        "_held",
        "_released",
        "_text",
        "generated",
        "origin",
        "params",
        "prompt",
        "request",
        "sampler",
    )

    def __init__(self, request: str, prompt: Many[int], params: GenerationParams, tokenizer: Tokenizer) -> None:
        self.origin = Origin(request, tuple(prompt), params, tokenizer)
        self.request = request
        self.prompt = self.origin.prompt
        self.params = params
        self.generated: list[int] = []
        self.sampler = Sampler(
            params.sampling,
            params.vocab_size,
            self.prompt,
            params.eos_ids + params.stop_token_ids,
            params.min_tokens,
        )
        self._text = TextStream(tokenizer, params.stops)
        self._released = 0  # characters that left
        self._held: list[_Held] = []
        self._ends = dict.fromkeys(params.stop_token_ids, RowEnd.STOP_TOKEN)
        if not params.ignore_eos:
            self._ends |= dict.fromkeys(params.eos_ids, RowEnd.EOS)

    def tokens(self, first: int, count: int) -> Many[int]:
        """Ids at positions first .. first+count-1 of prompt + output. All of them exist when a job is planned."""
        prompt = self.prompt
        if first >= len(prompt):
            first -= len(prompt)
            return self.generated[first : first + count]
        assert first + count <= len(prompt), "a prefill does not reach into the output"
        return prompt[first : first + count]

    def advance(self, choice: Choice) -> Advance:
        """Take the sampled token. Text held back leaves with the last token the request may generate."""
        if choice.error is not None:
            return Advance(RowEnd.UNUSABLE if choice.is_own_fault else RowEnd.ERROR, "")
        self.generated.append(choice.token)
        self.sampler.accept(choice.token)
        begin = self._text.decoded
        end, text = self._take_text(choice.token)
        self._released += len(text)
        if self.params.sampling.logprobs is None:
            return Advance(end, text)
        self._held.append(_Held(choice, begin, self._text.decoded))
        leaving = self._leaving(end)
        return Advance(end, text, tuple(held.choice for held in leaving), tuple(held.begin for held in leaving))

    def _take_text(self, token: int) -> tuple[RowEnd, str]:
        end = self._ends.get(token, RowEnd.NONE)
        if end is not RowEnd.NONE:
            return end, self._text.finish().text
        # As for ending tokens: what would end the output counts only after the tokens it must have.
        piece = self._text.push(token, is_matched=len(self.generated) > self.params.min_tokens)
        if piece.stopped:
            return RowEnd.STOP_STRING, piece.text
        if len(self.generated) < self.params.max_new_tokens:
            return RowEnd.NONE, piece.text
        last = self._text.finish()
        return RowEnd.STOP_STRING if last.stopped else RowEnd.NONE, piece.text + last.text

    def _leaving(self, end: RowEnd) -> list[_Held]:
        """Choices that may be shown: those of released text, so that a stop string does not leave by this door."""
        if end is RowEnd.STOP_STRING:
            leaving = [held for held in self._held if held.begin < self._released]
            self._held.clear()
            return leaving
        count = len(self._held) if end is not RowEnd.NONE else 0
        while count < len(self._held) and self._held[count].end <= self._released:
            count += 1
        leaving, self._held = self._held[:count], self._held[count:]
        return leaving
