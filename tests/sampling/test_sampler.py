"""The sampler against a naive full-sort reference that is given the same uniform number."""

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calserve.sampling import Choice, Sampler, SamplingParams, choose_rows
from calserve.sampling.filters import draw_token
from calserve.sampling.uniform import uniform

Row = npt.NDArray[np.float32]
# Float32 arithmetic may differ from the float64 reference by this much of the whole mass.
MARGIN = 2e-6


def naive_choice(row: Row, params: SamplingParams, u: float, barred: Iterable[int] = ()) -> int | None:
    """The definition, by a full sort in float64; None where rounding could decide otherwise."""
    logits = row.astype(np.float64) / params.temperature
    if barred:
        logits[list(barred)] = -np.inf
    weights = np.exp(logits - logits.max())
    close = [1.0]
    if params.min_p > 0:
        close.append(float(np.abs(weights - params.min_p).min()))
        weights[weights < params.min_p] = 0
    order = sorted(range(row.size), key=lambda token: (-logits[token], token))
    if params.top_k:
        weights[order[params.top_k :]] = 0
    if params.top_p < 1:
        share = np.cumsum(weights[order]) / weights.sum()
        close.append(float(np.abs(share - params.top_p).min()))
        weights[order[int(np.argmax(share >= params.top_p)) + 1 :]] = 0
    share = np.cumsum(weights) / weights.sum()
    close.append(float(np.abs(share - u)[weights > 0].min()))
    if min(close) < MARGIN:
        return None
    return int(np.argmax(share > u))


def make_row(seed: int, size: int, scale: float, step: float) -> Row:
    """Random logits; a step rounds them, which makes ties."""
    values = np.random.default_rng(seed).standard_normal(size) * scale
    return (np.round(values / step) * step if step else values).astype(np.float32)


rows = st.builds(
    make_row,
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 5, 127, 300, 1025, 5000, 20_000]),
    scale=st.sampled_from([0.1, 1.0, 3.0, 20.0]),
    step=st.sampled_from([0.0, 0.0, 0.5]),
)
sampled = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.999, 1e-6]),
    top_k=st.sampled_from([0, 0, 1, 3, 50, 400]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.6]),
    seed=st.integers(-(2**63), 2**63 - 1),
)


@settings(max_examples=150, deadline=None)
@given(row=rows, params=sampled, index=st.integers(0, 10_000), bar=st.booleans())
def test_choose_equals_naive_inverse_cdf(row: Row, params: SamplingParams, index: int, bar: bool) -> None:
    barred = {0, int(row.argmax()), row.size // 2} if bar and row.size > 3 else set()
    assert params.seed is not None
    expected = naive_choice(row, params, uniform(params.seed, index), barred)
    assume(expected is not None)
    choice = Sampler(params, row.size, suppressed=sorted(barred)).choose(row, index)
    assert choice == Choice(expected if expected is not None else -2)


@pytest.mark.parametrize("params", [SamplingParams(top_p=1e-12, seed=1), SamplingParams(top_k=1, seed=1)])
def test_choose_narrowest_filter_is_greedy_even_when_weights_round_equal(params: SamplingParams) -> None:
    # The two logits differ by one unit in the last place at 1e-3, which no float32 weight can show.
    row = np.full(2000, -5, dtype=np.float32)
    row[10] = 1e-3
    row[1500] = np.nextafter(np.float32(1e-3), np.float32(1))
    sampler = Sampler(params, row.size)
    assert {sampler.choose(row, index).token for index in range(50)} == {1500}


def test_choose_temperature_zero_takes_the_first_largest() -> None:
    row = np.array([0, 3, 1, 3], dtype=np.float32)
    assert Sampler(SamplingParams(temperature=0), 4).choose(row, 0).token == 1


def test_choose_tiny_temperature_is_greedy_and_needs_no_seed() -> None:
    row = np.array([0, 1, 3], dtype=np.float32)
    assert Sampler(SamplingParams(temperature=1e-40), 3).choose(row, 0).token == 2


def test_sampler_without_a_seed_is_refused_when_it_samples() -> None:
    with pytest.raises(AssertionError, match="seed"):
        Sampler(SamplingParams(temperature=1), 3)


def test_choose_frequencies_follow_the_softmax() -> None:
    probabilities = np.array([0.5, 0.25, 0.125, 0.125])
    row = np.log(probabilities).astype(np.float32)
    sampler = Sampler(SamplingParams(seed=5), 4)
    counts = np.bincount([sampler.choose(row, index).token for index in range(4000)], minlength=4)
    # Four standard deviations of a binomial of 4,000.
    assert np.all(np.abs(counts / 4000 - probabilities) < 4 * np.sqrt(0.25 / 4000))


def test_choose_token_of_weight_zero_is_never_drawn() -> None:
    row = np.full(3000, -np.inf, dtype=np.float32)
    row[[7, 2000]] = 0
    sampler = Sampler(SamplingParams(seed=3), row.size)
    assert {sampler.choose(row, index).token for index in range(100)} == {7, 2000}


@pytest.mark.parametrize("size", [3, 3000])
def test_draw_at_the_edges_of_the_unit_interval_skips_weight_zero(size: int) -> None:
    row = np.full(size, -np.inf, dtype=np.float32)
    row[[1, size - 2]] = 0
    params = SamplingParams(seed=0)
    assert draw_token(row, 0.0, params, None, 0.0) == 1
    assert draw_token(row, 0.0, params, None, 1.0) == size - 2


@pytest.mark.parametrize("size", [2, 3000])
def test_draw_on_a_boundary_takes_the_next_token(size: int) -> None:
    # Half of the mass lies on the first half of the tokens, so u = 1/2 belongs to the first of the second.
    assert draw_token(np.zeros(size, dtype=np.float32), 0.0, SamplingParams(seed=0), None, 0.5) == size // 2


def test_draw_nucleus_reaches_into_many_light_tokens() -> None:
    # One token of 90 %, a thousand of 0.01 % each: 95.005 % needs 501 of these, the ones with the lowest ids.
    row = np.full(20_000, -np.inf, dtype=np.float32)
    row[0] = np.log(0.9)
    row[100:1100] = np.log(1e-4)
    params = SamplingParams(top_p=0.95005, seed=0)
    assert draw_token(row, float(row[0]), params, None, 0.9999) == 600


def mixed_samplers(vocab: int) -> list[Sampler]:
    kinds = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.8, top_p=0.95, seed=11, logprobs=3),
        SamplingParams(seed=11),
        SamplingParams(top_k=40, top_p=0.9, seed=12),
        SamplingParams(min_p=0.02, seed=13),
        SamplingParams(temperature=0, frequency_penalty=1.0, logit_bias={5: 3.0}, logprobs=0),
    ]
    return [Sampler(kinds[lane % len(kinds)], vocab, prompt_ids=[1, 2]) for lane in range(16)]


def test_choose_rows_equals_each_row_alone_bit_for_bit() -> None:
    vocab = 49_152
    logits = (np.random.default_rng(0).standard_normal((16, vocab)) * 3).astype(np.float32)
    indices = list(range(100, 116))
    together = choose_rows(mixed_samplers(vocab), logits, indices)
    shifted = np.empty(vocab + 3, dtype=np.float32)
    for lane, sampler in enumerate(mixed_samplers(vocab)):
        # Another alignment in memory must not matter either.
        shifted[3:] = logits[lane]
        assert sampler.choose(shifted[3:], indices[lane]) == together[lane]


def test_choose_rows_takes_the_named_rows() -> None:
    logits = np.eye(4, dtype=np.float32)
    samplers = [Sampler(SamplingParams(temperature=0), 4) for _ in range(2)]
    assert [choice.token for choice in choose_rows(samplers, logits, [0, 0], rows=[3, 1])] == [3, 1]


def test_choose_same_seed_and_index_gives_the_same_token_in_any_lane() -> None:
    row = make_row(1, 5000, 1.0, 0.0)
    logits = np.stack([make_row(lane, 5000, 2.0, 0.0) for lane in range(8)])
    expected = Sampler(SamplingParams(seed=9), 5000).choose(row, 4)
    for lane in range(8):
        batch = logits.copy()
        batch[lane] = row
        samplers = [Sampler(SamplingParams(seed=9 if other == lane else other), 5000) for other in range(8)]
        assert choose_rows(samplers, batch, [4 if other == lane else 0 for other in range(8)])[lane] == expected


def test_choose_never_writes_to_the_logits() -> None:
    vocab = 3000
    logits = np.stack([make_row(lane, vocab, 2.0, 0.0) for lane in range(16)])
    before = logits.copy()
    logits.flags.writeable = False
    samplers = mixed_samplers(vocab)
    suppressing = Sampler(SamplingParams(temperature=0), vocab, suppressed=[int(logits[0].argmax())])
    choose_rows([suppressing, *samplers[1:]], logits, [0] * 16)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_choose_suppressed_token_waits_for_its_index(temperature: float) -> None:
    row = np.array([0, 50, 1, 0], dtype=np.float32)
    params = SamplingParams(temperature=temperature, seed=0, top_k=2)
    sampler = Sampler(params, 4, suppressed=[1, 99], suppressed_below=3)
    assert all(sampler.choose(row, index).token != 1 for index in range(3))
    assert sampler.choose(row, 3).token == 1
    assert Sampler(params, 4, suppressed=[1]).choose(row, 10**9).token != 1


def test_choose_all_suppressed_is_an_error() -> None:
    row = np.array([0, 1, -np.inf], dtype=np.float32)
    choice = Sampler(SamplingParams(temperature=0), 3, suppressed=[0, 1]).choose(row, 0)
    assert choice.error is not None
    assert choice.token == -1


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("position", [0, 63, 4999])
def test_choose_bad_logit_is_an_error_of_its_row_only(temperature: float, bad: float, position: int) -> None:
    logits = np.zeros((3, 5000), dtype=np.float32)
    logits[1, position] = bad
    samplers = [Sampler(SamplingParams(temperature=temperature, seed=1), 5000) for _ in range(3)]
    good, failed, mate = choose_rows(samplers, logits, [0, 0, 0])
    assert failed.token == -1
    assert failed.error is not None
    assert str(bad) in failed.error
    assert good.error is None
    assert good == mate


def test_choose_row_without_any_finite_logit_is_an_error() -> None:
    row = np.full(10, -np.inf, dtype=np.float32)
    assert Sampler(SamplingParams(seed=1), 10).choose(row, 0).error is not None


def test_choose_row_of_wrong_width_is_an_error() -> None:
    choice = Sampler(SamplingParams(temperature=0), 11).choose(np.zeros(10, dtype=np.float32), 0)
    assert choice.error == "The row has 10 logits, and 11 were expected."


@pytest.mark.filterwarnings("error")
def test_choose_extreme_finite_logits_still_sample() -> None:
    row = np.array([-3e38, 3e38, 3e38], dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=0.5, seed=2), 3)
    assert {sampler.choose(row, index).token for index in range(40)} == {1, 2}
