"""Log-probabilities of a row: the log-softmax of the unmodified logits, as OpenAI reports them.

Owns the numbers only. Must not know how the token was chosen: temperature, filters, penalties and bias do
not show.
"""

import math

import numpy as np
import numpy.typing as npt

from calserve.sampling.filters import top_k_ids

# OpenAI's value for a token that has no probability to speak of; JSON has no infinity.
LOWEST_LOGPROB = -9999.0
# Taken off every value, far below float32's resolution, so that rounding can never lift the sum of the
# probabilities over 1: float64's relative error over 21 values is below 1e-14.
ROUNDING_MARGIN = 1e-12


def log_probabilities(
    row: npt.NDArray[np.float32], token: int, top: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The chosen token's log-probability, and the `top` most likely tokens with theirs, falling.

    The chosen token is always among the latter: last, as one more, when it is not in the top.

    Args:
        row: float32[vocab], read only, no NaN, a finite maximum.
        token: the chosen token's id.
        top: how many most likely tokens to list; 0 lists none, the chosen one neither.
    """
    logits = row.astype(np.float64)
    logits -= logits.max()
    normaliser = math.log(float(np.exp(logits).sum())) + ROUNDING_MARGIN

    def value(index: int) -> float:
        return max(float(logits[index]) - normaliser, LOWEST_LOGPROB)

    chosen = value(token)
    if top == 0:
        return chosen, ()
    ids = sorted(top_k_ids(row, top).tolist(), key=lambda index: (-logits[index], index))
    listed = [(index, value(index)) for index in ids]
    if token not in ids:
        listed.append((token, chosen))
    return chosen, tuple(listed)
