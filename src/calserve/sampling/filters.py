"""Drawing one token from a row of logits: top-k, min-p, nucleus, and the inverse distribution function.

Owns the exact meaning of a draw, which `draw_token` states, and the shortcuts that make it cheap: no full
sort, no copy of the logits, one exponential per logit at most. Must not know requests, seeds or penalties.
Every function looks at one row only, so a row gives the same bits alone and in a batch.
"""

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from calserve.sampling.params import SamplingParams

Floats: TypeAlias = npt.NDArray[np.float32]
Sums: TypeAlias = npt.NDArray[np.float64]
Side: TypeAlias = Literal["left", "right"]
Ids: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

# Length of a block of weights, and of a group of logits; near the square root of a vocabulary.
BLOCK = 128
# Up to here one running sum is cheaper than sums of blocks.
SMALL = 8 * BLOCK
# A first guess at the nucleus: tokens holding more than this share of the mass that may be left out. Real
# distributions pass it with some hundred survivors; when they do not, an exact bound is tried next.
GUESS_SHARE = 1 / 256
# A set over one part in this many of the vocabulary is dearer to gather than to leave in place.
SMALL_SHARE = 8


def draw_token(row: Floats, peak: float, params: SamplingParams, barred: Ids | None, u: float) -> int:
    """Draw a token by the inverse distribution function, in order of token id.

    With p = softmax(row / temperature) over the tokens not barred: keep tokens with p >= min_p * max(p); of
    these the top_k with the largest logits; of these the shortest run, in falling order, whose share of
    what is left reaches top_p. Equal logits rank by token id. The token is the first whose cumulated share
    exceeds `u`.

    Args:
        row: float32[vocab], read only, no NaN.
        peak: the largest logit that is not barred, finite.
        params: temperature, top_k, min_p and top_p are read; the temperature is not greedy.
        barred: int64[n] ids that may not be drawn, or None.
        u: a number in [0, 1).
    """
    inverse = 1.0 / params.temperature
    ids: Ids | None = None  # None stands for every id in order
    if 0 < params.top_k < row.size:
        ids = top_k_ids(row, params.top_k, barred)
        weights = _weights(row[ids], peak, inverse)
    else:
        weights = _weights(row, peak, inverse)
        if barred is not None:
            weights[barred] = 0.0
    if params.min_p > 0.0:
        kept = np.flatnonzero(weights >= np.float32(params.min_p))
        ids, weights = kept if ids is None else ids[kept], weights[kept]
    if params.top_p < 1.0:
        mass = params.top_p * float(weights.sum())
        if ids is None:
            ids = _nucleus_superset(weights, params.top_p, mass)
            weights = weights if ids is None else weights[ids]
        _keep_nucleus(weights, row if ids is None else row[ids], mass)
    index = _draw(weights, u)
    return index if ids is None else int(ids[index])


def top_k_ids(row: Floats, k: int, barred: Ids | None = None) -> Ids:
    """Ids, rising, of the k largest logits that are not barred; among equals the lower id comes first.

    With fewer than k tokens not barred, all of those.
    """
    wanted = k if barred is None else k + barred.size
    ids = np.arange(row.size) if wanted >= row.size else np.flatnonzero(row >= _rank_bound(row, wanted))
    if barred is not None:
        ids = ids[(ids[:, None] != barred).all(axis=1)]
    if ids.size > k:
        ids = ids[_largest(row[ids], k)]
    return ids


def first_reaching(weights: Floats, target: float) -> int:
    """Index of the first weight where the running sum is at least `target`, or of the last not zero."""
    if weights.size <= SMALL:
        return _reaching(weights.cumsum(dtype=np.float64), target, "left")
    sums = _block_sums(weights)
    return _reaching_block(weights, sums, target, "left")


def _draw(weights: Floats, u: float) -> int:
    """Index of the first weight where the running sum exceeds u times the whole; never one that is zero."""
    if weights.size <= SMALL:
        running = weights.cumsum(dtype=np.float64)
        return _reaching(running, u * float(running[-1]), "right")
    sums = _block_sums(weights)
    return _reaching_block(weights, sums, u * float(sums[-1]), "right")


def _block_sums(weights: Floats) -> Sums:
    """Running sums at the end of each block of `BLOCK` weights (the last may be shorter), in float64."""
    whole = weights.size - weights.size % BLOCK
    sums = weights[:whole].reshape(-1, BLOCK).sum(axis=1, dtype=np.float64)
    if whole < weights.size:
        sums = np.append(sums, weights[whole:].sum(dtype=np.float64))
    running: Sums = sums.cumsum()
    return running


def _reaching_block(weights: Floats, sums: Sums, target: float, side: Side) -> int:
    """Only the block where the sum is reached is looked into, so that a whole vocabulary costs one pass."""
    block = _reaching(sums, target, side)
    start = block * BLOCK
    before = float(sums[block - 1]) if block else 0.0
    running = weights[start : start + BLOCK].cumsum(dtype=np.float64)
    return start + _reaching(running, target - before, side)


def _reaching(running: Sums, target: float, side: Side) -> int:
    """Index of the first running sum that is at least (left) or more than (right) `target`.

    Rounding may leave every sum below it: then the first that equals the last, whose weight is not zero.
    """
    index = int(running.searchsorted(target, side))
    return index if index < running.size else int(running.searchsorted(running[-1]))


def _weights(logits: Floats, peak: float, inverse: float) -> Floats:
    """exp((logits - peak) / temperature), in a new array; the largest is 1, so the sum cannot overflow."""
    weights = logits - np.float32(peak)
    weights *= np.float32(inverse)
    np.exp(weights, out=weights)
    return weights


def _rank_bound(row: Floats, rank: int) -> np.float32:
    """A logit that at least `rank` entries of the row reach; close below the rank-th largest.

    The maxima of disjoint groups are entries of the row, so the rank-th largest of them is such a bound.
    The groups are strided, because a maximum over the leading axis is what numpy vectorises.
    """
    groups = row.size // BLOCK
    values = row
    if rank <= groups // 2:
        values = row[: groups * BLOCK].reshape(BLOCK, groups).max(axis=0)
    position = values.size - rank
    return np.float32(np.partition(values, position)[position])


def _largest(values: Floats, count: int) -> Mask:
    """Marks the `count` largest values; among equals the earlier ones."""
    position = values.size - count
    edge = np.partition(values, position)[position]
    marked: Mask = values > edge
    equals = np.flatnonzero(values == edge)
    marked[equals[: count - int(np.count_nonzero(marked))]] = True
    return marked


def _nucleus_superset(weights: Floats, top_p: float, mass: float) -> Ids | None:
    """Ids of a small set that holds the nucleus: the largest weights, with `mass` in sum; None for all ids.

    All tokens below spare / vocab together weigh less than `spare`, so the second bound always suffices but
    for rounding. A set that is not small is not worth gathering.
    """
    spare = (1.0 - top_p) * mass / top_p
    for bound in (spare * GUESS_SHARE, spare / weights.size):
        kept = weights > np.float32(bound)
        if np.count_nonzero(kept) > weights.size // SMALL_SHARE:
            return None
        ids = np.flatnonzero(kept)
        if float(weights[ids].sum()) >= mass:
            return ids
    return None


def _keep_nucleus(weights: Floats, logits: Floats, mass: float) -> None:
    """Set to zero, in place, what is not in the shortest falling run of weights with at least `mass` in sum.

    Weights that are equal after rounding rank by their logit, then by position.
    """
    falling = np.sort(weights)[::-1]
    last = first_reaching(falling, mass)
    edge = falling[last]
    if last + 1 < falling.size and falling[last + 1] == edge:
        equals = np.flatnonzero(weights == edge)
        room = last + 1 - int(np.count_nonzero(weights > edge))
        ranked = equals[np.argsort(-logits[equals], kind="stable")]
        weights[ranked[room:]] = 0.0
    weights *= weights >= edge
