"""Log-probabilities: the log-softmax of the unmodified logits."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from calserve.sampling import Sampler, SamplingParams
from calserve.sampling.logprobs import LOWEST_LOGPROB, log_probabilities


def test_log_probabilities_of_known_shares() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125])).astype(np.float32)
    chosen, top = log_probabilities(row, 2, 2)
    assert math.isclose(chosen, math.log(0.125), rel_tol=1e-6)
    assert [token for token, _ in top] == [0, 1, 2]
    assert [round(math.exp(value), 5) for _, value in top] == [0.5, 0.25, 0.125]


def test_log_probabilities_chosen_in_the_top_is_listed_once() -> None:
    row = np.array([3, 2, 1], dtype=np.float32)
    assert [token for token, _ in log_probabilities(row, 1, 2)[1]] == [0, 1]
    assert log_probabilities(row, 1, 0)[1] == ()


def test_log_probabilities_ties_list_the_lower_id_first() -> None:
    assert [token for token, _ in log_probabilities(np.zeros(5, dtype=np.float32), 0, 3)[1]] == [0, 1, 2]


def test_log_probability_of_an_impossible_token_is_finite() -> None:
    row = np.array([0, -np.inf], dtype=np.float32)
    assert log_probabilities(row, 1, 2)[1][1] == (1, LOWEST_LOGPROB)


@given(seed=st.integers(0, 2**32), scale=st.sampled_from([0.01, 1.0, 30.0]), top=st.integers(1, 20))
def test_log_probabilities_sum_to_at_most_one_and_fall(seed: int, scale: float, top: int) -> None:
    row = (np.random.default_rng(seed).standard_normal(20) * scale).astype(np.float32)
    _, listed = log_probabilities(row, int(row.argmin()), top)
    assert math.fsum(math.exp(value) for _, value in listed) <= 1.0
    assert sum(math.exp(value) for _, value in listed) <= 1.0
    values = [value for _, value in listed]
    assert values == sorted(values, reverse=True)


def test_sampler_logprobs_ignore_temperature_bias_and_penalties() -> None:
    row = np.log(np.array([0.5, 0.25, 0.25])).astype(np.float32)
    params = SamplingParams(temperature=0, logit_bias={1: 100.0}, presence_penalty=2.0, logprobs=1)
    choice = Sampler(params, 3).choose(row, 0)
    assert choice.token == 1
    assert choice.logprob is not None
    assert math.isclose(choice.logprob, math.log(0.25), rel_tol=1e-6)
    assert [token for token, _ in choice.top] == [0, 1]


def test_sampler_without_logprobs_reports_none() -> None:
    choice = Sampler(SamplingParams(temperature=0), 2).choose(np.zeros(2, dtype=np.float32), 0)
    assert (choice.logprob, choice.top) == (None, ())
