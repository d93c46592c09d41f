"""The simulated model's text: one printable character a token, so that text and tokens can be compared by eye."""

from __future__ import annotations

import json

from calserve.text.tokenizer import Tokenizer

_FIRST = 33  # "!", the first printable character that is not a space


def text_of(token: int) -> str:
    return chr(_FIRST + token)


def make_tokenizer(vocab: int) -> Tokenizer:
    """A tokenizer of `vocab` tokens, at most 94: one character each, no merges, nothing special."""
    assert vocab <= 127 - _FIRST, "more tokens than printable characters"
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return Tokenizer(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": level,
                "post_processor": None,
                "decoder": level,
                "model": {"type": "BPE", "vocab": {text_of(i): i for i in range(vocab)}, "merges": []},
            }
        )
    )
