"""The right tokens, one at a time: the simulated model and the sampler, restated.

Owns: the hash of a sequence carried along token by token, the best token of a hash without looking at a row of
logits, and the draw of a sampled token. Must not know: requests, jobs, the board. The model's formula is written in
`runtime/sim/oracle.py`; this is the same in constant time a token.

The best token: logits are ((a v + b) mod V) / 8 with a odd and V a power of two, so rank r belongs to
v = (r - b) a^-1 mod V. The draw, by the inverse distribution function in order of token id: with p = softmax(logits /
temperature) over the tokens not barred, the first token whose cumulated share exceeds u(seed, index). u is the
SplitMix64 stream of the mixed seed, entered at the index, as 53 bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_M64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
TEMPERATURES_KEPT = 4096


def start_of(model: str) -> int:
    """The hash before the first token: the model's key."""
    return int.from_bytes(hashlib.sha256(model.encode()).digest()[:8], "big")


def carry(h: int, token: int, position: int) -> int:
    """The hash after `token` at `position`."""
    h = ((h ^ (token << 32 | position)) * _GOLDEN) & _M64
    return h ^ h >> 32


def carry_all(h: int, tokens: Sequence[int]) -> int:
    """The hash after `tokens` from position 0."""
    for position, token in enumerate(tokens):
        h = ((h ^ (token << 32 | position)) * _GOLDEN) & _M64
        h ^= h >> 32
    return h


def uniform_of(seed: int, index: int) -> float:
    """The number in [0, 1) that belongs to output `index` of a request with this seed."""
    stream = _scramble((seed + _GOLDEN) & _M64)
    return (_scramble((stream + (index + 1) * _GOLDEN) & _M64) >> 11) / (1 << 53)


def _scramble(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _M64
    return x ^ x >> 31


class TokenFormula:
    """Invariants: every function is pure; tables are only remembered."""

    def __init__(self, vocab: int) -> None:
        if vocab < 2 or vocab & (vocab - 1):
            raise ValueError(f"the simulated vocabulary is a power of two, not {vocab}")
        self._mask = vocab - 1
        self._ids = np.arange(vocab, dtype=np.int64)
        self._inverse = {a: pow(a, -1, vocab) for a in range(1, vocab, 2)}
        self._weights: dict[float, npt.NDArray[np.float64]] = {}

    def best(self, h: int, barred: frozenset[int] = frozenset()) -> int | None:
        """The token with the largest logit that is not barred; None when all are."""
        mask = self._mask
        inverse = self._inverse[(h >> 8 | 1) & mask]
        b = h >> 40 & mask
        token = (mask - b) * inverse & mask
        if token not in barred:
            return token
        for rank in range(mask - 1, -1, -1):
            token = (rank - b) * inverse & mask
            if token not in barred:
                return token
        return None

    def drawn(self, h: int, temperature: float, u: float, barred: frozenset[int] = frozenset()) -> int | None:
        """The token that `u` draws at this temperature among those not barred; None when all are."""
        best = self.best(h, barred)
        if best is None:
            return None
        mask = self._mask
        a, b = (h >> 8 | 1) & mask, h >> 40 & mask
        below = ((a * best + b) & mask) - ((a * self._ids + b) & mask)
        if barred:
            below[[token for token in barred if 0 <= token <= mask]] = mask + 1
        running = self._weights_of(temperature)[below].cumsum()
        at = int(running.searchsorted(u * float(running[-1]), "right"))
        return at if at <= mask else int(running.searchsorted(running[-1]))

    def _weights_of(self, temperature: float) -> npt.NDArray[np.float64]:
        """float64[vocab + 1]: weight of a token so many ranks below the best, in float32 steps as a sampler has
        them; the last entry, of a barred token, is 0."""
        found = self._weights.get(temperature)
        if found is None:
            steps = np.arange(self._mask + 1, dtype=np.float32) * np.float32(-0.125)
            weights = np.exp(steps * np.float32(1.0 / temperature)).astype(np.float64)
            found = np.append(weights, 0.0)
            if len(self._weights) >= TEMPERATURES_KEPT:
                self._weights.clear()
            self._weights[temperature] = found
        return found
