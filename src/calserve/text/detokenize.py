"""Incremental detokenizers: tokens in, whole characters out.

Owns the promise that the pieces of a stream, joined, equal the decoding of all its tokens at once. Must not
know stop strings or requests. A detokenizer lives as long as one request's output.
"""

import codecs
from typing import Protocol

from calserve.text.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# The generic detokenizer decodes a window again for each token: beyond the first length it tries to shrink
# the window to the second.
WINDOW_TOKENS_MAX = 32
WINDOW_TOKENS_KEPT = 8


class Detokenizer(Protocol):
    """One stream's way from tokens to text. `flush` ends it."""

    def push(self, token: int) -> str:
        """The characters that `token` completes."""
        ...

    def flush(self) -> str:
        """What is left at the end; an unfinished character becomes U+FFFD, as in a full decode."""
        ...


def make_detokenizer(tokenizer: Tokenizer) -> Detokenizer:
    if tokenizer.byte_table is not None:
        return ByteDetokenizer(tokenizer.byte_table)
    return WindowDetokenizer(tokenizer)


class ByteDetokenizer:
    """For byte-level BPE: tokens are bytes, and a UTF-8 decoder holds back the unfinished character.

    Python's "replace" handler and the tokenizers library both put one U+FFFD for each maximal ill-formed part
    (Unicode 16.0, section 3.9), so a stream and a full decode agree on any bytes.
    """

    def __init__(self, byte_table: list[bytes]) -> None:
        self._table = byte_table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token: int) -> str:
        # An id past the tokenizer's end (logits may be wider) has no text; a negative one would wrap around.
        if not 0 <= token < len(self._table):
            return ""
        return self._decode(self._table[token])

    def flush(self) -> str:
        return self._decode(b"", final=True)


class WindowDetokenizer:
    """For any other tokenizer: decode the last tokens again and give out what is new.

    Invariants: `_text` is the decoding of `_window`, and its first `_sent` characters have been given out.
    Text is held back while the last token is a byte token (`<0xE2>`): a later byte may make the whole run
    of them ill-formed, and the library then replaces all of it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._text = ""
        self._sent = 0

    def push(self, token: int) -> str:
        if token in self._tokenizer.special_ids or not self._tokenizer.has_token(token):
            return ""
        self._window.append(token)
        self._text = self._tokenizer.decode(self._window)
        if self._tokenizer.is_byte_token(token) or self._text.endswith(REPLACEMENT):
            return ""
        piece = self._text[self._sent :]
        self._sent = len(self._text)
        if len(self._window) > WINDOW_TOKENS_MAX:
            self._shrink()
        return piece

    def flush(self) -> str:
        piece = self._text[self._sent :]
        self._sent = len(self._text)
        return piece

    def _shrink(self) -> None:
        """Keep only the last tokens, if they decode alone to what they gave in the window."""
        kept = self._window[-WINDOW_TOKENS_KEPT:]
        text = self._tokenizer.decode(kept)
        if text and self._text.endswith(text):
            self._window, self._text, self._sent = kept, text, len(text)
