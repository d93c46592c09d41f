"""The sampler: one request's way from a row of logits to a token.

Owns the order of the steps: winner, bias and penalties, suppression, draw, log-probabilities. Must not know
lanes, jobs, text or stop conditions. A sampler lives as long as its request and is used by one thread at a
time; `choose` changes nothing, `accept` is called once for each token whose job has succeeded.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from calserve.sampling.filters import draw_token
from calserve.sampling.logprobs import log_probabilities
from calserve.sampling.params import SamplingParams
from calserve.sampling.penalties import LogitBias, TokenCounts
from calserve.sampling.uniform import uniform

Row: TypeAlias = npt.NDArray[np.float32]

NO_TOKEN = -1
# No request has this many output tokens, so "below" it is always.
ALWAYS = 2**63


class Choice(NamedTuple):
    """What one row gave. Exactly one holds: `error` is None, or `token` is NO_TOKEN and the row is unusable.

    `logprob` is there when the request asked for log-probabilities; `top` holds the most likely tokens,
    falling, and the chosen one as one more when it is not among them. `is_own_fault`: the request's parameters, not
    the logits, left nothing to choose.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: str | None = None
    is_own_fault: bool = False


class Sampler:
    """Chooses the tokens of one request.

    Invariants: the choice is a function of (parameters, accepted tokens, logits, output index) only. The
    logits are never written to. Used by the completion step of one sequence.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_ids: Sequence[int] = (),
        suppressed: Sequence[int] = (),
        suppressed_below: int = ALWAYS,
    ) -> None:
        """
        Args:
            params: the seed must be there unless the request is greedy.
            vocab_size: the width of the logits, not the tokenizer's size.
            prompt_ids: read only where a penalty needs them.
            suppressed: ids that cannot be chosen, such as end-of-text before the least number of tokens.
            suppressed_below: the suppression holds for output indices below this one.
        """
        assert params.is_greedy or params.seed is not None, "a sampled request needs a seed"
        self._params = params
        self._vocab_size = vocab_size
        self._seed = params.seed or 0
        self._bias = LogitBias(params, vocab_size) if params.logit_bias else None
        self._counts = TokenCounts(prompt_ids, vocab_size) if params.has_penalties else None
        barred = sorted({token for token in suppressed if 0 <= token < vocab_size})
        self._barred = np.array(barred, dtype=np.int64) if barred else None
        self._barred_below = suppressed_below

    def choose(self, logits: Row, output_index: int) -> Choice:
        """The token at `output_index` (0 for the first generated one) given its logits, float32[vocab]."""
        return choose_rows((self,), logits[np.newaxis], (output_index,))[0]

    def accept(self, token: int) -> None:
        """Record that `token` is now part of the output."""
        if self._counts is not None:
            self._counts.accept(token)

    def _choose(self, row: Row, winner: int, output_index: int) -> Choice:
        """`winner` is the row's argmax, which numpy lets a NaN win, so one look at it finds any bad logit."""
        if row.size != self._vocab_size:
            return _failed(f"The row has {row.size} logits, and {self._vocab_size} were expected.")
        if not np.isfinite(row[winner]):
            return _failed(f"The largest logit is {row[winner]}, at token {winner}.")
        edited = row
        if self._bias is not None or self._counts is not None:
            edited = self._edit(row)
            winner = int(edited.argmax())
            if not np.isfinite(edited[winner]):
                return _failed(f"The largest logit after penalties is {edited[winner]}, at token {winner}.", True)
        barred = self._barred if output_index < self._barred_below else None
        if barred is not None and winner in barred:
            winner = _argmax_without(edited, barred)
            if winner in barred or not np.isfinite(edited[winner]):
                return _failed("Every token with a finite logit is suppressed.", True)
        token = winner
        if not self._params.is_greedy:
            u = uniform(self._seed, output_index)
            token = draw_token(edited, float(edited[winner]), self._params, barred, u)
        if self._params.logprobs is None:
            return Choice(token)
        return Choice(token, *log_probabilities(row, token, self._params.logprobs))

    def _edit(self, row: Row) -> Row:
        edited = row.copy()
        if self._bias is not None:
            self._bias.add_to(edited)
        if self._counts is not None:
            self._counts.penalise(edited, self._params)
        return edited


def choose_rows(
    samplers: Sequence[Sampler],
    logits: npt.NDArray[np.float32],
    output_indices: Sequence[int],
    rows: Sequence[int] | None = None,
) -> list[Choice]:
    """One choice for each sampler, each the same as the sampler would make alone.

    Args:
        samplers: one for each row that is wanted.
        logits: float32[rows, vocab], read only; dead to us when this returns.
        output_indices: the output index of each sampler's token.
        rows: which row of `logits` belongs to each sampler; by default the first to the first, and so on.
    """
    assert len(samplers) == len(output_indices) <= logits.shape[0]
    assert logits.dtype == np.float32
    wanted = range(len(samplers)) if rows is None else rows
    winners = logits.argmax(axis=1).tolist()
    with np.errstate(over="ignore", invalid="ignore"):
        return [
            sampler._choose(logits[row], winners[row], index)
            for sampler, row, index in zip(samplers, wanted, output_indices, strict=True)
        ]


def _argmax_without(row: Row, barred: npt.NDArray[np.int64]) -> int:
    rest = row.copy()
    rest[barred] = -np.inf
    return int(rest.argmax())


def _failed(error: str, is_own_fault: bool = False) -> Choice:
    return Choice(NO_TOKEN, error=error, is_own_fault=is_own_fault)
