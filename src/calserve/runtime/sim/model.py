"""The toy model and the memory it reads: logits that depend on every (token, position) a lane really holds.

Owns: KV lanes, their cached rolling hash, and the logits of a hash. Must not know: jobs, graphs, requests.
`oracle.py` computes the same from the prompt alone, in its own words; the formula is written there.

A slot a job never wrote reads as `NEVER_WRITTEN`. A lane is never cleared when its holder leaves: what the
next holder does not overwrite and does read is stale KV, and changes its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1
MULTIPLIER = 0x9E3779B97F4A7C15
LOGIT_STEP = 0.125
Entry = tuple[int, int]
NEVER_WRITTEN: Entry = (-1, -1)
UNDEFINED: Entry = (-2, -2)


class LaneMemory:
    """One lane: entry i is the (token, position) in KV slot i.

    Invariants: `_hashes[i]` is the hash of entries 0..i; it is cut back at every overwrite, so a decode costs
    one step and a wrong write costs what it must.
    """

    __slots__ = ("_hashes", "_start", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._hashes: list[int] = []
        self._start = 0

    def write(self, slot: int, entries: Sequence[Entry]) -> None:
        """Slots slot .. slot+len-1 now hold `entries`."""
        held = self.entries
        if slot > len(held):
            held.extend([NEVER_WRITTEN] * (slot - len(held)))
        held[slot : slot + len(entries)] = entries
        if slot < len(self._hashes):
            del self._hashes[slot:]

    def hash(self, start: int, length: int) -> int:
        """Hash of the first `length` slots under the model's key `start`; `length` >= 1."""
        if start != self._start:
            self._start = start
            self._hashes.clear()
        if length > len(self.entries):
            self.write(len(self.entries), [NEVER_WRITTEN] * (length - len(self.entries)))
        hashes = self._hashes
        value = hashes[-1] if hashes else start
        for token, position in self.entries[len(hashes) : length]:
            value = ((value ^ ((token & 0xFFFFFFFF) << 32 | position & 0xFFFFFFFF)) * MULTIPLIER) & MASK
            value ^= value >> 32
            hashes.append(value)
        return hashes[length - 1]


class ToyHead:
    """Logits of a hash: every row is a permutation of 0, 1/8, 2/8, ... so that no two logits tie."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._tokens = np.arange(vocab, dtype=np.int64)

    def logits(self, hashes: Sequence[int]) -> npt.NDArray[np.float32]:
        """float32[len(hashes), vocab]."""
        top = self._vocab - 1
        scale = np.array([[(value >> 8 | 1) & top] for value in hashes], dtype=np.int64)
        shift = np.array([[(value >> 40) & top] for value in hashes], dtype=np.int64)
        ranks = (scale * self._tokens + shift) & top
        return ranks.astype(np.float32) * np.float32(LOGIT_STEP)


def in_tiles(values: npt.NDArray[np.float32], tile: int) -> npt.NDArray[np.float32]:
    """float32[rows, vocab] as the tiled layout of `GraphContract.logits_tile`; NaN where a tile has no token."""
    rows, vocab = values.shape
    tiles = -(-vocab // tile)
    if tiles * tile != vocab:
        whole = np.full((rows, tiles * tile), np.nan, np.float32)
        whole[:, :vocab] = values
        values = whole
    return np.ascontiguousarray(values.reshape(rows, tiles, tile).transpose(1, 0, 2))


def to_bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bit patterns of float32 values that bfloat16 holds exactly (or NaN): the upper half of each word."""
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
