"""Penalties and logit bias: how a row of logits is changed before a token is chosen.

Owns the counts of one request's tokens. Must not know the generator or the filters. The counts grow only by
`accept`, which is called when a job has succeeded, so that a failed job can be run again with the same
result.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from calserve.sampling.params import SamplingParams

INITIAL_SLOTS = 64


class TokenCounts:
    """How often each token stands in one request's output, and which tokens stand in its prompt or output.

    Invariants: slot i of `ids` and `outputs` is one token; `slots` finds it; a token has one slot. A token
    that stands only in the prompt has an output count of 0. Used by one sampler only.
    """

    def __init__(self, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(INITIAL_SLOTS, dtype=np.int64)
        self._outputs = np.zeros(INITIAL_SLOTS, dtype=np.float32)
        for token in prompt_ids:
            self._slot(token)

    def accept(self, token: int) -> None:
        slot = self._slot(token)
        if slot is not None:
            self._outputs[slot] += 1

    def penalise(self, row: npt.NDArray[np.float32], params: SamplingParams) -> None:
        """Change `row`, float32[vocab], in place: CTRL's repetition penalty, then OpenAI's two.

        Repetition (arXiv 1909.05858, with the sign rule that HF and vLLM use) looks at prompt and output;
        presence and frequency look at the output only.
        """
        ids = self._ids[: len(self._slots)]
        outputs = self._outputs[: len(self._slots)]
        logits = row[ids]
        factor = np.float32(params.repetition_penalty)
        logits = np.where(logits > 0, logits / factor, logits * factor)
        logits -= outputs * np.float32(params.frequency_penalty)
        logits -= (outputs > 0) * np.float32(params.presence_penalty)
        row[ids] = logits

    def _slot(self, token: int) -> int | None:
        """The token's slot, made if need be; None for an id beyond the logits."""
        slot = self._slots.get(token)
        if slot is None and 0 <= token < self._vocab_size:
            slot = self._slots[token] = len(self._slots)
            if slot == self._ids.size:
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._outputs = np.concatenate([self._outputs, np.zeros_like(self._outputs)])
            self._ids[slot] = token
        return slot


class LogitBias:
    """A request's logit bias as arrays. Ids beyond the logits are left out."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        bias = {token: value for token, value in (params.logit_bias or {}).items() if 0 <= token < vocab_size}
        self._ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self._values = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))

    def add_to(self, row: npt.NDArray[np.float32]) -> None:
        row[self._ids] += self._values
