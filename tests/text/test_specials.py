"""Special texts: found in any position, and hidden so that none is left."""

from hypothesis import given
from hypothesis import strategies as st

from calserve.text.specials import SpecialTexts, SpecialToken

# Tokens that overlap, contain one another, and one of a single character.
TEXTS = ["<a>", "a><b", "<a><", "#"]
SPECIALS = SpecialTexts(SpecialToken(number, text) for number, text in enumerate(TEXTS))


texts = st.lists(st.sampled_from(["<a>", "a><b", "<a><", "#", *"<a>b "]), max_size=8).map("".join)


@given(text=texts, before=st.sampled_from(["", "<", "<a"]), after=st.text("><b#a"))
def test_hidden_text_forms_no_special_text_beside_any_other(text: str, before: str, after: str) -> None:
    disguise = SPECIALS.choose_disguise([text])
    assert disguise is not None
    hidden = SPECIALS.hide(text, disguise)
    assert hidden.translate(disguise.show) == text
    assert (hidden == text) == SPECIALS.is_safe(text)
    beside = before + hidden + after
    inside = range(len(before), len(before) + len(hidden))
    for special in TEXTS:
        for start in range(len(beside)):
            if beside.startswith(special, start) and len(hidden.strip()) >= len(special):
                assert not set(range(start, start + len(special))) & set(inside)


def test_hide_finds_special_texts_that_overlap() -> None:
    disguise = SPECIALS.choose_disguise([])
    assert disguise is not None
    hidden = SPECIALS.hide("<a><b", disguise)
    assert not any(special in hidden for special in TEXTS)


def test_split_takes_the_longest_token_as_the_library_does() -> None:
    assert SPECIALS.split("x<a><y") == ["x", SpecialToken(2, "<a><"), "y"]
    assert SPECIALS.split("") == []
    assert SpecialTexts([]).split("<a>") == ["<a>"]


def test_disguise_uses_no_character_of_the_texts() -> None:
    taken = "\U000f0000\U000f0001\U000f0003"
    disguise = SPECIALS.choose_disguise(["x", taken])
    assert disguise is not None
    assert not set(disguise.hide.values()) & set(taken)


def test_without_special_tokens_everything_is_safe() -> None:
    assert SpecialTexts([]).is_safe("<|im_start|>")
