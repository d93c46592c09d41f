"""The tokenizer: text from outside never becomes a special token, and every token has its bytes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, processors
from tokenizers import Tokenizer as HfTokenizer

from calserve.text import InvalidText, Tokenizer
from calserve.text.tokenizer import TokenizerFailed

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)
typed = st.lists(st.one_of(texts, st.sampled_from(["<|im_start|>", "<|im_end|>", "<|", "|>", "<think>"])))


def test_tokenizer_lists_special_and_eos_ids(tokenizer: Tokenizer, peer: HfTokenizer) -> None:
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.eos_ids == {2}
    assert set(tokenizer.specials.by_text) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert tokenizer.vocab_size == peer.get_vocab_size()


@given(parts=typed)
def test_encode_never_gives_a_special_id_and_keeps_the_text(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.decode(ids) == text


def test_encode_plain_text_equals_the_library(tokenizer: Tokenizer, peer: HfTokenizer) -> None:
    text = "Paris is the capital, 日本語 🙂 <think>"
    assert tokenizer.encode(text) == peer.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode("") == []


def test_encode_many_equals_encode_of_each(tokenizer: Tokenizer) -> None:
    texts_given = ["hello", "", "<|im_end|>", "what is the capital"]
    assert tokenizer.encode_many(texts_given) == [tokenizer.encode(text) for text in texts_given]
    assert tokenizer.encode_many([]) == []


def test_encode_trusted_parses_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_trusted("<|im_start|>user")
    assert ids[0] == 1
    assert tokenizer.decode(ids) == "user"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>user"


def test_encode_adds_the_post_processors_tokens_only_when_asked(peer: HfTokenizer) -> None:
    other = HfTokenizer.from_str(peer.to_str())
    other.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer = Tokenizer(other.to_str())
    plain = tokenizer.encode("hello")
    assert 0 not in plain
    assert tokenizer.encode("hello", add_special=True) == [0, *plain]
    assert tokenizer.encode_trusted("hello") == plain


def test_encode_ignores_truncation_and_padding_of_the_file(peer: HfTokenizer) -> None:
    other = HfTokenizer.from_str(peer.to_str())
    other.enable_truncation(2)
    other.enable_padding(length=50)
    tokenizer = Tokenizer(other.to_str())
    for text in ("hi", "The quick brown fox jumps over the lazy dog"):
        assert tokenizer.encode(text) == peer.encode(text).ids
        assert tokenizer.encode_trusted(text) == peer.encode(text).ids


def test_declared_ids_become_special(peer: HfTokenizer) -> None:
    think = peer.token_to_id("<think>")
    word = peer.token_to_id("Ġthe")
    tokenizer = Tokenizer(peer.to_str(), special_ids=[think], eos_ids=[word])
    assert tokenizer.special_ids == {0, 1, 2, think, word}
    assert think not in tokenizer.encode("a <think> b")
    assert tokenizer.encode_trusted("a <think> b").count(think) == 1
    assert tokenizer.decode([think, word]) == ""
    assert tokenizer.vocab_size == peer.get_vocab_size()


@pytest.mark.parametrize("number", [10**6, -1, 2**40])
def test_declared_id_that_does_not_exist_is_refused(peer: HfTokenizer, number: int) -> None:
    with pytest.raises(ValueError, match=f"no token {number}"):
        Tokenizer(peer.to_str(), special_ids=[number])


def test_from_file_reads_a_tokenizer_and_refuses_anything_else(peer: HfTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    peer.save(str(path))
    assert Tokenizer.from_file(path).encode("hello") == peer.encode("hello").ids
    path.write_text(json.dumps({"model": 1}))
    with pytest.raises(ValueError, match="cannot be read"):
        Tokenizer.from_file(path)


def test_encode_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidText, match="lone surrogate"):
        tokenizer.encode("a\ud800b")


def test_byte_table_equals_the_librarys_decode_of_each_token(tokenizer: Tokenizer, peer: HfTokenizer) -> None:
    assert tokenizer.byte_table is not None
    for number in range(peer.get_vocab_size()):
        expected = peer.decode([number])
        assert tokenizer.byte_table[number].decode("utf-8", "replace") == expected


def test_byte_table_covers_every_byte_once(tokenizer: Tokenizer) -> None:
    assert tokenizer.byte_table is not None
    single = sorted(entry for entry in tokenizer.byte_table if len(entry) == 1)
    assert single == [bytes([byte]) for byte in range(256)]


def test_token_bytes_shows_special_tokens_and_nothing_for_foreign_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(1) == b"<|im_start|>"
    assert tokenizer.token_bytes(tokenizer.encode("hello")[0]) != b""
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.token_bytes(-1) == b""


@settings(max_examples=50)
@given(text=texts)
def test_fallback_tokenizer_keeps_text_and_gives_no_special(fallback_tokenizer: Tokenizer, text: str) -> None:
    ids = fallback_tokenizer.encode(text + "</s>")
    assert fallback_tokenizer.byte_table is None
    assert not {1, 2} & set(ids)


def test_normalizer_that_could_make_a_special_token_forbids_parsing_whole(peer: HfTokenizer) -> None:
    other = HfTokenizer.from_str(peer.to_str())
    other.normalizer = normalizers.NFKC()
    assert Tokenizer(other.to_str()).can_parse_whole
    other.add_special_tokens([AddedToken("[END]", normalized=True)])
    assert not Tokenizer(other.to_str()).can_parse_whole


def _hostile(**parts: Any) -> Tokenizer:
    """One word a, split by what `parts` say."""
    tree: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "w": 1}, "unk_token": "w"},
    }  # fmt: skip
    return Tokenizer(json.dumps({**tree, **parts}))


def test_encode_where_the_library_panics_is_an_error_of_the_text_and_the_next_text_is_read() -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = _hostile(pre_tokenizer=split)
    with pytest.raises(TokenizerFailed, match=r"^The model's tokenizer cannot take this text: .*\.$"):
        tokenizer.encode("a" * 3000 + "b")
    assert tokenizer.encode("a") == [0]


def test_encode_of_a_text_that_would_grow_beyond_memory_is_refused_unread() -> None:
    """2**26 characters at most: one becomes 2**22, so that 16 are the most."""
    replace = {"type": "Replace", "pattern": {"String": "z"}, "content": "b" * 2**22}
    tokenizer = _hostile(normalizer=replace)
    assert tokenizer.encode("a") == [0]
    for encode in (tokenizer.encode, tokenizer.encode_trusted):
        with pytest.raises(InvalidText, match="has 17 characters; this model's tokenizer takes at most 16"):
            encode("a" * 17)
