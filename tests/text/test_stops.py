"""Stop strings against a naive reference: `str.find` over the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calserve.text import StopMatcher

letters = st.text(alphabet="ab<", max_size=40)
stop_lists = st.lists(st.text(alphabet="ab<", min_size=1, max_size=5), min_size=1, max_size=5)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first match to be complete, the longest of several ending together; and the text before it."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    out = [matcher.push(piece).text for piece in pieces]
    return [*out, matcher.flush()], matcher.stop


@given(pieces=st.lists(letters, max_size=12), stops=stop_lists)
def test_stops_of_any_text_in_any_pieces_equal_str_find(pieces: list[str], stops: list[str]) -> None:
    out, stop = run(pieces, stops)
    assert ("".join(out), stop) == naive("".join(pieces), stops)


@given(pieces=st.lists(letters, max_size=12), stops=stop_lists)
def test_stops_release_all_but_a_possible_beginning(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = sent = ""
    for piece in pieces:
        match = matcher.push(piece)
        seen, sent = seen + piece, sent + match.text
        if match.stop is not None:
            break
        ends = [length for stop in stops for length in range(1, len(stop)) if seen.endswith(stop[:length])]
        assert sent == seen[: len(seen) - max(ends, default=0)]


def test_stop_split_over_pieces_is_never_sent() -> None:
    assert run(["Hello ", "wor", "ld\n", "\nUs", "er", ": next"], ["\n\nUser:"]) == (
        ["Hello ", "wor", "ld", "", "", "", ""],
        "\n\nUser:",
    )


def test_held_text_is_released_when_it_does_not_match() -> None:
    assert run(["a\n", "\nUs", "ual"], ["\n\nUser:"]) == (["a", "", "\n\nUsual", ""], None)
    assert run(["end\n\nUser"], ["\n\nUser:"]) == (["end", "\n\nUser"], None)


def test_several_stops_the_first_complete_one_wins() -> None:
    assert run(["abcd"], ["abcd", "bc"]) == (["a", ""], "bc")
    assert run(["xabc"], ["bc", "abc"]) == (["x", ""], "abc")
    assert run(["one two"], ["two", "one"]) == (["", ""], "one")


def test_overlapping_beginning_is_found() -> None:
    assert run(["aaab"], ["aab"]) == (["a", ""], "aab")


def test_nothing_comes_out_after_a_stop() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == ("a", "x")
    assert matcher.push("more") == ("", "x")
    assert matcher.flush() == ""


def test_stop_with_characters_that_mean_something_to_re() -> None:
    assert run(["a]b^c-d\\"], ["^c-", "\\"]) == (["a]b", ""], "^c-")


def test_empty_stop_is_refused() -> None:
    with pytest.raises(AssertionError, match="empty"):
        StopMatcher(["a", ""])


def test_scan_work_is_linear_in_the_text() -> None:
    """Counts the automaton's look-ups on the worst kind of text: a stop that nearly matches everywhere."""
    stops = ["a" * (500 + number) + "b" for number in range(16)]
    matcher = StopMatcher(stops)
    looked = 0

    class Counting(dict[str, int]):
        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            nonlocal looked
            looked += 1
            return super().get(key, default)  # type: ignore[call-overload]

        def __contains__(self, key: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(key)

    automaton = matcher._automaton
    automaton._children = [Counting(children) for children in automaton._children]
    for _ in range(5000):
        matcher.push("a")
    assert looked <= 4 * 5000
