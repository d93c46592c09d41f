"""Penalties and logit bias, with results worked out by hand."""

import numpy as np
import pytest

from calserve.sampling import Sampler, SamplingParams
from calserve.sampling.penalties import TokenCounts


def penalised(params: SamplingParams, prompt: list[int], output: list[int], row: list[float]) -> list[float]:
    counts = TokenCounts(prompt, len(row))
    for token in output:
        counts.accept(token)
    logits = np.array(row, dtype=np.float32)
    counts.penalise(logits, params)
    return [float(value) for value in logits]


def test_presence_and_frequency_count_the_output_only() -> None:
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5)
    # Token 1 twice: 2 x 0.5 + 1; token 2 once: 0.5 + 1; token 0 stands in the prompt only.
    assert penalised(params, [0, 0], [1, 1, 2], [4.0, 4.0, 4.0, 4.0]) == [4.0, 2.0, 2.5, 4.0]


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    assert penalised(params, [0], [1], [4.0, -3.0, 4.0]) == [2.0, -6.0, 4.0]


def test_counts_grow_beyond_their_first_size_and_ignore_foreign_ids() -> None:
    params = SamplingParams(presence_penalty=1.0)
    row = penalised(params, [-1, 500], [*range(200), 10**9], [0.0] * 300)
    assert row == [-1.0] * 200 + [0.0] * 100


def test_sampler_penalty_acts_after_accept_only() -> None:
    row = np.array([1.0, 1.5, 0.0], dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=1.0), 3)
    assert [sampler.choose(row, 0).token, sampler.choose(row, 0).token] == [1, 1]
    sampler.accept(1)
    assert sampler.choose(row, 1).token == 0


@pytest.mark.parametrize(("bias", "expected"), [({2: 5.0}, 2), ({1: -100.0}, 0), ({7: 100.0}, 1)])
def test_logit_bias_moves_the_winner(bias: dict[int, float], expected: int) -> None:
    row = np.array([1.0, 1.5, 0.0], dtype=np.float32)
    assert Sampler(SamplingParams(temperature=0, logit_bias=bias), 3).choose(row, 0).token == expected
