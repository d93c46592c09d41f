"""The whole way from tokens to sendable text."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer

from calserve.text import Piece, TextStream, Tokenizer

REFERENCE = Path(__file__).parents[1] / "data" / "smollm2-135m-greedy.json"


def run(stream: TextStream, ids: list[int]) -> str:
    text = ""
    for token in ids:
        piece = stream.push(token)
        text += piece.text
        if piece.stopped:
            break
    return text + stream.finish().text


@given(data=st.data())
def test_stream_joined_equals_full_decode_cut_at_the_first_stop(
    tokenizer: Tokenizer, peer: HfTokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, peer.get_vocab_size() - 1), max_size=40))
    whole = peer.decode(ids)
    assert run(TextStream(tokenizer), ids) == whole
    start = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    stop = whole[start : start + data.draw(st.integers(1, 4))] or "x"
    assert run(TextStream(tokenizer, [stop]), ids) == whole.split(stop)[0]


@given(text=st.sampled_from([item["greedy_text"] for item in json.loads(REFERENCE.read_text())["items"]]))
def test_stream_of_real_output_equals_its_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer, ["never in there"])
    assert run(stream, ids) == text


def test_stream_tells_of_its_stop_and_then_stays_silent(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["capital"])
    pieces = [stream.push(token) for token in tokenizer.encode("Paris is the capital of France")]
    assert "".join(piece.text for piece in pieces) == "Paris is the "
    first = [piece.stopped for piece in pieces].index(True)
    assert all(piece == Piece("", True) for piece in pieces[first + 1 :])
    assert stream.finish().text == ""


def test_stream_finish_gives_held_text_and_the_unfinished_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.byte_table is not None
    half = tokenizer.byte_table.index(b"\xe2")
    stream = TextStream(tokenizer, ["hello world"])
    text = "".join(stream.push(token).text for token in [*tokenizer.encode("say hello"), half])
    assert text == "say "
    assert stream.finish().text == "hello\ufffd"


def test_stream_stop_completed_by_the_last_flush_is_cut(tokenizer: Tokenizer) -> None:
    assert tokenizer.byte_table is not None
    stream = TextStream(tokenizer, ["\ufffd"])
    assert stream.push(tokenizer.byte_table.index(b"\xe2")) == Piece("")
    assert stream.finish().text == ""


def test_stream_special_token_gives_no_text(tokenizer: Tokenizer) -> None:
    assert TextStream(tokenizer).push(2) == Piece("")
