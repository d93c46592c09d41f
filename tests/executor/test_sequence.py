"""One sequence by hand: text, stops and log-probabilities leave together, and only what may leave."""

from __future__ import annotations

from executor_rig import byte_tokenizer

from calserve.core.outcomes import RowEnd
from calserve.executor.sequence import Advance, GenerationParams, Sequence
from calserve.sampling.params import SamplingParams
from calserve.sampling.sampler import Choice

TOKENIZER = byte_tokenizer(64)  # token i is the character chr(33 + i)


def ids(text: str) -> list[int]:
    return [ord(character) - 33 for character in text]


def run(output: str, **how: object) -> list[Advance]:
    """Advance over `output` as if each of its characters had been sampled, to the first end."""
    params = GenerationParams(
        SamplingParams(temperature=0.0, logprobs=0),
        **{"max_new_tokens": len(output), "vocab_size": 64, **how},  # type: ignore[arg-type]
    )
    sequence = Sequence("r", ids("AB"), params, TOKENIZER)
    told = []
    for token in ids(output):
        told.append(sequence.advance(Choice(token, -1.0)))
        if told[-1].end is not RowEnd.NONE:
            break
    return told


def shown(told: list[Advance]) -> tuple[str, str, list[int]]:
    """Text, the tokens whose log-probabilities were shown, and their offsets."""
    tokens = [choice.token for advance in told for choice in advance.choices]
    offsets = [offset for advance in told for offset in advance.offsets]
    return "".join(advance.text for advance in told), "".join(chr(33 + token) for token in tokens), offsets


def test_sequence_without_stops_shows_each_token_with_its_place() -> None:
    told = run("HELLO")
    assert shown(told) == ("HELLO", "HELLO", [0, 1, 2, 3, 4])
    assert [advance.end for advance in told] == [RowEnd.NONE] * 5


def test_sequence_stop_string_leaves_neither_as_text_nor_as_log_probabilities() -> None:
    told = run("HELLO<END>MORE", stops=("<END>",))
    assert shown(told) == ("HELLO", "HELLO", [0, 1, 2, 3, 4])
    assert told[-1].end is RowEnd.STOP_STRING


def test_sequence_text_held_back_in_vain_leaves_with_its_log_probabilities() -> None:
    told = run("A<ENOUGH", stops=("<END>",))
    assert [advance.text for advance in told] == ["A", "", "", "", "<ENO", "U", "G", "H"]
    assert [len(advance.choices) for advance in told] == [1, 0, 0, 0, 4, 1, 1, 1]
    assert shown(told) == ("A<ENOUGH", "A<ENOUGH", list(range(8)))


def test_sequence_text_held_back_at_the_last_token_is_released() -> None:
    told = run("AB<EN", stops=("<END>",))
    assert shown(told) == ("AB<EN", "AB<EN", list(range(5)))
    assert told[-1].end is RowEnd.NONE


def test_sequence_stop_is_not_looked_for_before_min_tokens() -> None:
    assert shown(run("XAXBXC", stops=("X",), min_tokens=3))[0] == "XAXB"
    assert shown(run("XAXBXC", stops=("X",), min_tokens=0))[0] == ""


def test_sequence_ending_token_is_shown_and_ends_silently() -> None:
    told = run("HI!YOU", eos_ids=tuple(ids("!")))
    assert shown(told) == ("HI", "HI!", [0, 1, 2])
    assert told[-1].end is RowEnd.EOS


def test_sequence_tokens_are_prompt_then_output() -> None:
    sequence = Sequence("r", [7, 8, 9], GenerationParams(SamplingParams(temperature=0.0), 4, 64), TOKENIZER)
    sequence.advance(Choice(20))
    assert list(sequence.tokens(1, 2)) == [8, 9]
    assert list(sequence.tokens(3, 1)) == [20]
