"""Whatever bytes come as a body: they are taken, or refused in one sentence with a 4xx, and nothing else happens.

A handful of examples here; `make fuzz` runs many.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calserve.api.errors import ApiError
from calserve.api.parameters import parse_chat, parse_completion
from calserve.api.schemas import ChatBody, CompletionBody

PARSERS = {"completion": parse_completion, "chat": parse_chat}
NAMES = sorted({*CompletionBody.__struct_fields__, *ChatBody.__struct_fields__, "", "model_", "Messages"})
NUMBERS = st.one_of(
    st.integers(), st.sampled_from([2**63, -(2**63) - 1, 2**64, 10**400, -1, 0, 1]), st.floats(), st.just(-0.0)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6) | st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=8,
)
# What a client might send, so that more than the first check is reached.
LIKELY = {
    "model": st.just("toy"),
    "prompt": st.one_of(st.text(max_size=8), st.lists(st.integers(-1, 400), max_size=5), st.lists(st.text(max_size=3))),
    "messages": st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "tool", ""]), "content": VALUES}), max_size=3
    ),
    "temperature": st.one_of(NUMBERS, st.floats(0, 2)),
    "top_k": NUMBERS,
    "logit_bias": st.dictionaries(st.text("0123456789-", max_size=4), NUMBERS | st.floats(-100, 100), max_size=3),
    "stop": st.one_of(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=6)),
    "stop_token_ids": st.lists(st.integers(-2, 400), max_size=4),
    "max_tokens": NUMBERS,
    "n": NUMBERS,
    "logprobs": st.one_of(st.booleans(), NUMBERS),
    "stream_options": st.dictionaries(st.just("include_usage"), st.booleans()),
    "tools": VALUES,
    "response_format": VALUES,
}  # fmt: skip
MORE = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2)
BODIES = st.one_of(
    st.binary(max_size=64),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({}, optional=LIKELY).map(lambda body: json.dumps(body).encode()),
    st.tuples(st.fixed_dictionaries({}, optional=LIKELY), MORE).map(
        lambda both: json.dumps(both[0] | both[1]).encode("utf-8", "surrogatepass")
    ),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("route", PARSERS)
@given(body=BODIES)
def test_body_of_any_kind_is_taken_or_refused_in_one_sentence(route: str, body: bytes) -> None:
    answer = PARSERS[route](body, 0)
    if not isinstance(answer, ApiError):
        return
    assert 400 <= answer.status < 500
    message = json.loads(answer.body)["error"]["message"]
    assert 0 < len(message) < 600


@pytest.mark.slow
@pytest.mark.parametrize("route", PARSERS)
@given(cut=st.integers(0, 200), flipped=st.integers(0, 7), at=st.integers(0, 200))
def test_body_that_was_cut_or_damaged_on_the_way_is_taken_or_refused(
    route: str, cut: int, flipped: int, at: int
) -> None:
    whole = json.dumps({"model": "toy", "prompt": "é", "stop": ["a", "b"], "seed": 3, "stream": True}).encode()
    damaged = bytearray(whole[: len(whole) - min(cut, len(whole) - 1)])
    damaged[at % len(damaged)] ^= 1 << flipped
    assert PARSERS[route](bytes(damaged), 0) is not None
