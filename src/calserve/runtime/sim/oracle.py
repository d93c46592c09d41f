"""The right tokens of the simulated model, computed from the prompt alone and simple enough to check by hand.

Must not know, and does not import: the device, its memory, its cache. All arithmetic is on non-negative
integers below 2^64:

    h     = the model's key: the first 8 bytes of sha256(model name), big-endian
    for each token t at position p = 0, 1, 2, ...:
        h = (h xor (t x 2^32 + p)) x 0x9E3779B97F4A7C15  mod 2^64
        h = h xor floor(h / 2^32)
    a     = (floor(h / 2^8) with its lowest bit set) mod vocab
    b     = floor(h / 2^40) mod vocab
    logit of token v = ((a x v + b) mod vocab) / 8

`a` is odd and `vocab` a power of two, so the logits of a row are all different and the best token is the one v
with a x v + b = vocab - 1 (mod vocab).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def model_key(model: str) -> int:
    """The 64-bit key of a model's name."""
    return int.from_bytes(hashlib.sha256(model.encode()).digest()[:8], "big")


def hash_token(h: int, token: int, position: int) -> int:
    h = (h ^ (token * 2**32 + position)) * 0x9E3779B97F4A7C15 % 2**64
    return h ^ h // 2**32


def hash_tokens(tokens: Sequence[int], model: str = "sim-model") -> int:
    h = model_key(model)
    for position, token in enumerate(tokens):
        h = hash_token(h, token, position)
    return h


def logits_row(h: int, vocab: int) -> list[float]:
    """float[vocab]: the logits that belong to a hash."""
    a = (h // 2**8 | 1) % vocab
    b = h // 2**40 % vocab
    return [(a * v + b) % vocab / 8 for v in range(vocab)]


def greedy_tokens(
    prompt_ids: Sequence[int],
    n: int,
    vocab: int,
    model: str = "sim-model",
    stop_ids: Sequence[int] = (),
) -> list[int]:
    """At most `n` greedy tokens after the prompt; ends with the first of `stop_ids`, which is included.

    Raises ValueError for an empty prompt: there is nothing to compute logits from.
    """
    if not prompt_ids:
        raise ValueError("a prompt needs at least one token")
    h = hash_tokens(prompt_ids, model)
    output: list[int] = []
    while len(output) < n:
        row = logits_row(h, vocab)
        best = row.index(max(row))
        h = hash_token(h, best, len(prompt_ids) + len(output))
        output.append(best)
        if best in stop_ids:
            break
    return output
