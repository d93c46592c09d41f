"""A counter-based generator: a uniform number from (seed, output index) and nothing else.

It is the SplitMix64 stream (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
2014), entered at any index without walking to it. Nothing is remembered between calls, so a token that is
recomputed after a failed job, in another lane or beside other requests, gets the same number.
"""

MASK64 = 2**64 - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """SplitMix64's output function; `value` is taken modulo 2**64."""
    value &= MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def uniform(seed: int, output_index: int) -> float:
    """A float64 in [0, 1) with 53 random bits.

    The seed is mixed first, so that neighbouring seeds do not walk the same stream one step apart.
    """
    state = mix64(seed + GOLDEN_GAMMA) + (output_index + 1) * GOLDEN_GAMMA
    return (mix64(state) >> 11) * 2.0**-53
