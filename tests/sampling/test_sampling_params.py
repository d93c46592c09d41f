"""Sampling parameters: what is accepted, and the one sentence for what is not."""

import math

import pytest

from calserve.sampling import InvalidParameter, SamplingParams, parse_sampling


def test_parse_empty_gives_openai_defaults() -> None:
    assert parse_sampling({}) == SamplingParams(
        temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=None, presence_penalty=0.0, frequency_penalty=0.0,
        repetition_penalty=1.0, logprobs=None, logit_bias=None,
    )  # fmt: skip


def test_parse_null_takes_the_default() -> None:
    assert parse_sampling({"temperature": None, "seed": None, "logit_bias": None}) == SamplingParams()


@pytest.mark.parametrize(
    ("raw", "field", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 2}, "temperature", 2.0),
        ({"top_p": 1e-9}, "top_p", 1e-9),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 40}, "top_k", 40),
        ({"min_p": 1}, "min_p", 1.0),
        ({"seed": -(2**63)}, "seed", -(2**63)),
        ({"seed": 2**63 - 1}, "seed", 2**63 - 1),
        ({"presence_penalty": -2}, "presence_penalty", -2.0),
        ({"repetition_penalty": 1.3}, "repetition_penalty", 1.3),
        ({"logprobs": 20}, "logprobs", 20),
        ({"logit_bias": {"50256": -100, 3: 1}}, "logit_bias", {50256: -100.0, 3: 1.0}),
    ],
)
def test_parse_value_at_the_edge_is_accepted(raw: dict[str, object], field: str, value: object) -> None:
    assert getattr(parse_sampling(raw), field) == value


REALS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


@pytest.mark.parametrize("field", REALS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", True, [], {}, 10**400, -3, 10.5])
def test_parse_bad_number_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=f"^{field} must be ") as caught:
        parse_sampling({field: value})
    assert caught.value.name == field
    assert caught.value.message.endswith(".")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.0001),
        ("top_p", 0),
        ("min_p", 1.01),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("top_k", -2),
        ("top_k", 0.01),
        ("top_k", 1.0),
        ("top_k", True),
        ("top_k", "4"),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("seed", 1.5),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
        ("logit_bias", []),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1.5": 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"٣": 1}),
        pytest.param("logit_bias", {"9" * 5000: 1}, id="logit_bias-long-key"),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": math.nan}),
        ("logit_bias", {"1": "5"}),
        ("logit_bias", {str(number): 1 for number in range(1025)}),
        ("best_of", 2),
    ],
)
def test_parse_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_sampling({field: value})
    assert caught.value.name == field
    assert field in caught.value.message


def test_parse_message_names_range_and_value() -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_sampling({"top_p": 1.5})
    assert caught.value.message == "top_p must be greater than 0 and at most 1, not 1.5."


@pytest.mark.parametrize(
    "value", [10**20_000, -(10**20_000), "x" * 10**6, [0] * 10**6], ids=["huge", "low", "string", "array"]
)
def test_parse_huge_value_gives_a_short_message(value: object) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_sampling({"seed": value})
    assert len(caught.value.message) < 200


def test_parse_bias_beyond_the_logits_is_refused() -> None:
    assert parse_sampling({"logit_bias": {"99": 1}}, vocab_size=100).logit_bias == {99: 1.0}
    with pytest.raises(InvalidParameter, match="from 0 to 99"):
        parse_sampling({"logit_bias": {"100": 1}}, vocab_size=100)
