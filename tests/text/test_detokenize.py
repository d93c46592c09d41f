"""Detokenizers: any stream of tokens, joined, equals the library's decode of all of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders

from calserve.text import Tokenizer
from calserve.text.detokenize import ByteDetokenizer, Detokenizer, WindowDetokenizer, make_detokenizer

# Starts, continuations and what may not follow them: surrogates, overlong forms, beyond U+10FFFF.
BYTES = [0x41, 0x80, 0xBF, 0xC3, 0xE2, 0x82, 0xAC, 0xED, 0xA0, 0xF0, 0x9F, 0xF4, 0x90, 0xFF]
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=80)
PICTURES = ["👩‍👩‍👧", "🙂", "é", "é", "日本", "नमस्ते", "a", " ", "\n", "\ufffd"]
pictures = st.lists(st.sampled_from(PICTURES)).map("".join)


def stream(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def test_make_detokenizer_chooses_by_decoder(tokenizer: Tokenizer, fallback_tokenizer: Tokenizer) -> None:
    assert isinstance(make_detokenizer(tokenizer), ByteDetokenizer)
    assert isinstance(make_detokenizer(fallback_tokenizer), WindowDetokenizer)


@settings(max_examples=150)
@given(data=st.data())
def test_byte_stream_of_any_tokens_equals_full_decode(
    tokenizer: Tokenizer, peer: HfTokenizer, data: st.DataObject
) -> None:
    # Any ids: single bytes, so ill-formed UTF-8 of every kind, special and unknown ids among them.
    ids = data.draw(st.lists(st.integers(0, peer.get_vocab_size() + 20), max_size=60))
    assert "".join(stream(make_detokenizer(tokenizer), ids)) == peer.decode(ids)


@settings(max_examples=150)
@given(raw=st.lists(st.sampled_from(BYTES)))
def test_byte_stream_of_ill_formed_bytes_equals_full_decode(
    tokenizer: Tokenizer, peer: HfTokenizer, raw: list[int]
) -> None:
    assert tokenizer.byte_table is not None
    ids = [tokenizer.byte_table.index(bytes([byte])) for byte in raw]
    assert "".join(stream(make_detokenizer(tokenizer), ids)) == peer.decode(ids)


@given(text=st.one_of(texts, pictures), cut=st.integers(0, 40))
def test_byte_stream_cut_anywhere_equals_full_decode(
    tokenizer: Tokenizer, peer: HfTokenizer, text: str, cut: int
) -> None:
    ids = peer.encode(text).ids[:cut]
    assert "".join(stream(make_detokenizer(tokenizer), ids)) == peer.decode(ids)


def test_byte_stream_holds_a_character_until_it_is_whole(tokenizer: Tokenizer) -> None:
    assert tokenizer.byte_table is not None
    ids = [tokenizer.byte_table.index(bytes([byte])) for byte in "a€".encode()]
    assert stream(make_detokenizer(tokenizer), ids) == ["a", "", "", "€", ""]
    assert stream(make_detokenizer(tokenizer), ids[:3]) == ["a", "", "", "\ufffd"]


def test_byte_stream_skips_special_and_foreign_ids(tokenizer: Tokenizer) -> None:
    assert stream(make_detokenizer(tokenizer), [1, 2, 10**9, -1]) == ["", "", "", "", ""]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_window_stream_of_any_tokens_equals_full_decode(
    fallback_tokenizer: Tokenizer, fallback_peer: HfTokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, fallback_peer.get_vocab_size() + 5), max_size=120))
    assert "".join(stream(make_detokenizer(fallback_tokenizer), ids)) == fallback_peer.decode(ids)


@settings(deadline=None)
@given(text=st.one_of(texts, pictures), cut=st.integers(0, 100))
def test_window_stream_cut_anywhere_equals_full_decode(
    fallback_tokenizer: Tokenizer, fallback_peer: HfTokenizer, text: str, cut: int
) -> None:
    ids = fallback_peer.encode(text).ids[:cut]
    assert "".join(stream(make_detokenizer(fallback_tokenizer), ids)) == fallback_peer.decode(ids)


def test_window_stream_flows_and_keeps_a_bounded_window(
    fallback_tokenizer: Tokenizer, fallback_peer: HfTokenizer
) -> None:
    ids = fallback_peer.encode("what is the capital of France? Paris is the capital. " * 20).ids
    detokenizer = WindowDetokenizer(fallback_tokenizer)
    pieces = [detokenizer.push(token) for token in ids]
    assert all(pieces[1:])
    assert "".join(pieces) == fallback_peer.decode(ids)
    assert len(detokenizer._window) < 40


@pytest.fixture(scope="session")
def sequence_peer(peer: HfTokenizer) -> HfTokenizer:
    """Byte-level too, but declared in a way that only the generic detokenizer serves."""
    other = HfTokenizer.from_str(peer.to_str())
    other.decoder = decoders.Sequence([decoders.ByteLevel()])
    return other


@pytest.fixture(scope="session")
def sequence_tokenizer(sequence_peer: HfTokenizer) -> Tokenizer:
    return Tokenizer(sequence_peer.to_str())


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(texts, pictures), data=st.data())
def test_window_stream_of_unfinished_characters_equals_full_decode(
    sequence_tokenizer: Tokenizer, sequence_peer: HfTokenizer, text: str, data: st.DataObject
) -> None:
    ids = sequence_peer.encode(text).ids + data.draw(st.lists(st.integers(0, 300), max_size=60))
    detokenizer = make_detokenizer(sequence_tokenizer)
    assert isinstance(detokenizer, WindowDetokenizer)
    assert "".join(stream(detokenizer, ids)) == sequence_peer.decode(ids)


def test_window_is_not_cut_where_its_end_alone_reads_otherwise(fallback_peer: HfTokenizer) -> None:
    """A decoder that takes 20 spaces off the start would take them off the start of a cut window again."""
    other = HfTokenizer.from_str(fallback_peer.to_str())
    other.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 20, 0)])
    ids = [other.token_to_id("▁")] * 60 + other.encode("what").ids
    assert "".join(stream(make_detokenizer(Tokenizer(other.to_str())), ids)) == other.decode(ids)


@pytest.mark.parametrize("run", ["é", "日本語"])
def test_window_stream_holds_a_run_of_byte_tokens(
    fallback_tokenizer: Tokenizer, fallback_peer: HfTokenizer, run: str
) -> None:
    # One more byte makes the run ill-formed, and the library then replaces every byte of it.
    ids = [fallback_peer.token_to_id(f"<0x{byte:02X}>") for byte in [*run.encode(), 0xFF]]
    pieces = stream(make_detokenizer(fallback_tokenizer), ids)
    assert "".join(pieces) == "\ufffd" * len(ids) == fallback_peer.decode(ids)
