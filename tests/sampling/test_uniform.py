"""The counter-based generator against the published SplitMix64 and a walk along its stream."""

from calserve.sampling.uniform import GOLDEN_GAMMA, MASK64, mix64, uniform


def test_mix64_gives_the_published_stream_of_seed_zero() -> None:
    # The first outputs of SplitMix64 with seed 0, as in the test vectors of its public implementations.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [mix64(step * GOLDEN_GAMMA) for step in (1, 2, 3)] == expected


def test_uniform_of_index_equals_the_walked_stream() -> None:
    state = mix64(7 + GOLDEN_GAMMA)
    for index in range(50):
        state = (state + GOLDEN_GAMMA) & MASK64
        assert uniform(7, index) == (mix64(state) >> 11) / 2**53


def test_uniform_lies_in_the_unit_interval_and_is_even() -> None:
    values = [uniform(seed, index) for seed in range(100) for index in range(100)]
    assert all(0.0 <= value < 1.0 for value in values)
    # Ten bins of 1,000 expected; the standard deviation of each is 30.
    bins = [sum(1 for value in values if int(value * 10) == number) for number in range(10)]
    assert all(850 < count < 1150 for count in bins)


def test_uniform_differs_between_neighbouring_seeds_and_signs() -> None:
    seeds = [0, 1, 2, -1, -2, 2**63 - 1, -(2**63)]
    streams = {tuple(uniform(seed, index) for index in range(8)) for seed in seeds}
    values = {value for stream in streams for value in stream}
    assert len(values) == len(seeds) * 8
