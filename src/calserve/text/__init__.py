"""Between text and token ids, both ways.

Owns: the tokenizer, the chat template, the incremental detokenizer and the stop strings.

Must not know: requests, lanes, jobs, logits, HTTP. A `Tokenizer` and a `ChatTemplate` are made once for
each package and shared by threads; a `TextStream` belongs to one request and is used by one thread at a
time.
"""

from calserve.text.chat import ChatError, ChatTemplate, TemplateError
from calserve.text.stops import StopMatcher
from calserve.text.stream import Piece, TextStream
from calserve.text.tokenizer import InvalidText, Tokenizer

__all__ = [
    "ChatError",
    "ChatTemplate",
    "InvalidText",
    "Piece",
    "StopMatcher",
    "TemplateError",
    "TextStream",
    "Tokenizer",
]
