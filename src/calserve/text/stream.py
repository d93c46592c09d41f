"""One request's output as text: the detokenizer and the stop strings put together.

Owns the order of the two. Must not know why a generation ends: the caller says so with `finish`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from calserve.text.detokenize import make_detokenizer
from calserve.text.stops import StopMatcher
from calserve.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """Text that may be sent, and whether a stop string ended the stream with it."""

    text: str
    stopped: bool = False


class TextStream:
    """Tokens in, sendable text out.

    Invariants: the pieces joined, with `finish`, equal the decoding of all tokens, cut before the first
    stop string. Once stopped, nothing more comes out. Used by the completion step of one sequence.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer = make_detokenizer(tokenizer)
        self._matcher = StopMatcher(stops) if stops else None
        self.decoded = 0  # characters of the output so far, those held back included

    def push(self, token: int, *, is_matched: bool = True) -> Piece:
        """The text that `token` releases; special tokens release none.

        is_matched: False lets the token's text pass unseen by the stop strings. Only before the first one that is
        matched, so that nothing is held back then.
        """
        text = self._detokenizer.push(token)
        self.decoded += len(text)
        if self._matcher is None or not is_matched:
            return Piece(text)
        match = self._matcher.push(text)
        return Piece(match.text, match.stop is not None)

    def finish(self) -> Piece:
        """The rest of the text when the generation ends, for whatever reason; nothing after a stop."""
        text = self._detokenizer.flush()
        self.decoded += len(text)
        if self._matcher is None:
            return Piece(text)
        match = self._matcher.push(text)
        return Piece(match.text, True) if match.stop is not None else Piece(match.text + self._matcher.flush())
