"""Sampling parameters: what a request may ask for, and how a bad value is refused.

Owns the names, ranges and defaults. Must not know which endpoint a value came from: `parse_sampling` takes
plain decoded JSON values and names the offending field, and the caller turns that into its own error
object.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Below this a division by the temperature overflows float32 logits, and nothing but the winner has any
# weight. The same limit as vLLM's `_SAMPLING_EPS`.
GREEDY_BELOW_TEMPERATURE = 1e-5
# vLLM's default for `max_logprobs`; OpenAI's chat endpoint allows the same number.
TOP_LOGPROBS_MAX = 20
# OpenAI accepts logit biases in [-100, 100]; vLLM takes 1,024 of them at most.
LOGIT_BIAS_ENTRIES_MAX = 1024
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# A token id no vocabulary reaches: only there so that an absurd `top_k` or bias key is refused early.
TOKEN_ID_MAX = 2**31 - 1


class InvalidParameter(ValueError):
    """A parameter whose value cannot be served; `message` is one sentence for the client."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.message = message


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request asks of its sampler.

    Invariants: values made by `parse_sampling` lie in their ranges. The order in which they act is vLLM's:
    logit bias, penalties, temperature, min-p, top-k, then top-p over what is left. Temperature 0 is greedy.
    `top_k` 0 is off. `seed` None means that the caller draws one before it builds a sampler.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        neutral = (0.0, 0.0, 1.0)
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != neutral


class _Range(NamedTuple):
    low: float
    high: float
    is_low_open: bool = False

    def __str__(self) -> str:
        if self.is_low_open:
            return f"greater than {self.low} and at most {self.high}"
        return f"between {self.low} and {self.high}"

    def has(self, value: float) -> bool:
        return (self.low < value if self.is_low_open else self.low <= value) and value <= self.high


# OpenAI's ranges where it has the parameter, vLLM's elsewhere. The upper end of repetition_penalty is ours:
# it keeps the product with any real logit finite.
_REALS = {
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1, is_low_open=True),
    "min_p": _Range(0, 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0, 10, is_low_open=True),
}
_INTEGERS = {
    "top_k": _Range(-1, TOKEN_ID_MAX),
    "seed": _Range(INT64_MIN, INT64_MAX),
    "logprobs": _Range(0, TOP_LOGPROBS_MAX),
}
_BIAS = _Range(-100, 100)


def parse_sampling(raw: Mapping[str, object], vocab_size: int | None = None) -> SamplingParams:
    """Turn decoded JSON values into parameters.

    Args:
        raw: field name to value; a missing field or None takes the default.
        vocab_size: the logits width; when given, keys of `logit_bias` must lie below it.

    Raises:
        InvalidParameter: with the name of the first bad field and one sentence for the client.
    """
    values: dict[str, float] = {}
    bias: Mapping[int, float] | None = None
    for name, value in raw.items():
        if name not in _REALS and name not in _INTEGERS and name != "logit_bias":
            raise InvalidParameter(name[:64], f"{_shown(name)} is not a sampling parameter.")
        if value is None:
            continue
        if name in _REALS:
            values[name] = _real(name, value, _REALS[name])
        elif name in _INTEGERS:
            values[name] = _integer(name, value, _INTEGERS[name])
        else:
            bias = _bias(value, vocab_size)
    if values.get("top_k") == -1:
        values["top_k"] = 0
    # The tables above give each field its type, which a mapping of them cannot show.
    return SamplingParams(**values, logit_bias=bias)  # type: ignore[arg-type]


def _real(name: str, value: object, bounds: _Range) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidParameter(name, f"{name} must be a number, not {_shown(value)}.")
    # No range has NaN or an infinity. It is compared before the conversion: a huge integer has no float.
    if not bounds.has(value):
        raise InvalidParameter(name, f"{name} must be {bounds}, not {_shown(value)}.")
    return float(value)


def _integer(name: str, value: object, bounds: _Range) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidParameter(name, f"{name} must be an integer, not {_shown(value)}.")
    if not bounds.has(value):
        raise InvalidParameter(name, f"{name} must be {bounds}, not {_shown(value)}.")
    return value


def _bias(value: object, vocab_size: int | None) -> dict[int, float] | None:
    name = "logit_bias"
    if not isinstance(value, Mapping):
        raise InvalidParameter(name, f"{name} must be an object of token ids and numbers, not {_shown(value)}.")
    if len(value) > LOGIT_BIAS_ENTRIES_MAX:
        raise InvalidParameter(name, f"{name} must have at most {LOGIT_BIAS_ENTRIES_MAX} entries, not {len(value)}.")
    limit = TOKEN_ID_MAX if vocab_size is None else vocab_size - 1
    bias = {_token_id(key, limit): _real(name, amount, _BIAS) for key, amount in value.items()}
    return bias or None


def _token_id(key: object, limit: int) -> int:
    """JSON object keys are strings, so decimal digits count as an id."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= len(str(TOKEN_ID_MAX)):
        key = int(key)
    if isinstance(key, bool) or not isinstance(key, int) or not 0 <= key <= limit:
        raise InvalidParameter(
            "logit_bias", f"A key of logit_bias must be a token id from 0 to {limit}, not {_shown(key)}."
        )
    return key


def _shown(value: object) -> str:
    """A short printed form: printing a 10^7-digit integer would itself be the attack."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return ascii(value) if len(value) <= 32 else f"a string of {len(value)} characters"
    return "an array" if isinstance(value, (list, tuple)) else "an object"
