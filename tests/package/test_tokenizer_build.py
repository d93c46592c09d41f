"""The pre-tokenizers by name: where each splits, as the families publish it, and the special tokens' handling."""

from __future__ import annotations

from typing import Any

import pytest

from calserve.package import PackageError
from calserve.package.pack.tokenizer import build_tokenizer
from tiny_model import tiny_vocabulary


def metadata(**overrides: Any) -> dict[str, Any]:
    tokens, merges = tiny_vocabulary()
    usual = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [1] * 317 + [3] * 3,
    }
    return usual | {f"tokenizer.ggml.{key}": value for key, value in overrides.items()}


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġx", "!!"]),
        ("gpt-2", ["It", "'s", "Ġ1234", "Ġx", "!!"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "Ġx", "!!"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "4", "Ġx", "!!"]),
    ],
)
def test_build_tokenizer_splits_as_the_family_does(pre: str, pieces: list[str]) -> None:
    tokenizer: Any = build_tokenizer(metadata(pre=pre))
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("It's 1234 x!!")] == pieces


def test_build_tokenizer_merges_in_order() -> None:
    tokens, _ = tiny_vocabulary()
    encoded: Any = build_tokenizer(metadata()).encode("I and the", add_special_tokens=False)
    # "Ġand" by "Ġ a" + n + d: "a n" comes after "Ġ a", and "Ġa n" makes "Ġan", then "Ġan d".
    assert encoded.tokens == ["I", "Ġand", "Ġthe"]
    assert encoded.ids == [tokens.index(t) for t in ("I", "Ġand", "Ġthe")]


def test_build_tokenizer_bytes_survive_a_round_trip() -> None:
    tokenizer = build_tokenizer(metadata())
    text = "Grüße, 世界! \N{PILE OF POO}\t\n"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_build_tokenizer_control_token_is_one_token_and_can_be_plain_text() -> None:
    tokenizer = build_tokenizer(metadata())
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False).ids == [319]
    tokenizer.encode_special_tokens = True
    assert 319 not in tokenizer.encode("<|im_end|>", add_special_tokens=False).ids


def test_build_tokenizer_user_defined_token_is_whole_and_not_special() -> None:
    tokenizer = build_tokenizer(metadata(token_type=[1] * 317 + [3, 3, 4]))
    assert tokenizer.encode("a<|im_end|>", add_special_tokens=False).ids[-1] == 319
    assert not tokenizer.get_added_tokens_decoder()[319].special


def test_build_tokenizer_beginning_token_only_where_asked() -> None:
    with_bos = build_tokenizer(metadata(add_bos_token=True, bos_token_id=318))
    assert with_bos.encode("a").ids[0] == 318
    assert build_tokenizer(metadata(bos_token_id=318)).encode("a").ids[0] != 318


@pytest.mark.parametrize("bos", [None, 320, -1])
def test_build_tokenizer_beginning_token_missing_refused(bos: int | None) -> None:
    with pytest.raises(PackageError):
        build_tokenizer(metadata(add_bos_token=True, bos_token_id=bos))


def test_build_tokenizer_control_token_without_text_refused() -> None:
    tokens, _ = tiny_vocabulary()
    with pytest.raises(PackageError, match="marks other tokens as special"):
        build_tokenizer(metadata(tokens=[*tokens[:-1], ""]))
