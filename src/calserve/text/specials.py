"""Special-token texts: finding them, and making them inert where a user typed them.

Owns the one rule that keeps roles from being forged: a special token may come from the template only. Must
not know chats or templates.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Private-use planes 15 and 16 (Unicode 16.0, section 23.5): no text means anything by these characters.
SENTINEL_RANGES = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


_NEVER = r"(?!)"


class SpecialToken(NamedTuple):
    """A special token as its tokenizer declares it; a stripping one swallows whitespace on that side."""

    id: int
    text: str
    is_left_stripping: bool = False
    is_right_stripping: bool = False


class Disguise(NamedTuple):
    """Sentinels that stand for characters of special texts while a template is rendered, and the way back."""

    hide: Mapping[str, str]
    show: Mapping[int, str]


class SpecialTexts:
    """The special tokens of one tokenizer, with what is needed to find them in text in linear time.

    Invariants: immutable, so that threads may share it. No text of a token is empty.
    """

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self.by_text = {token.text: token for token in tokens if token.text}
        # The longest first, which is how the tokenizers library resolves two that start at the same place.
        texts = sorted(self.by_text, key=lambda text: (-len(text), text))
        self._characters = sorted(set().union(*texts))
        self._whole = re.compile("|".join(map(re.escape, texts)) or _NEVER)
        self._starts = re.compile("|".join(_starting_patterns(texts)) or _NEVER)
        self._heads = {text[:length] for text in texts for length in range(1, len(text))}
        self._tails = {text[length:] for text in texts for length in range(1, len(text))}
        self._fragment_max = max(map(len, texts), default=1) - 1

    def is_safe(self, text: str) -> bool:
        """Whether `text` holds no special text and no fragment at an end that other text could complete."""
        return not self._dangers(text)

    def is_inside(self, text: str) -> bool:
        """Whether `text` holds a whole special text."""
        return self._starts.search(text) is not None

    def choose_disguise(self, texts: Iterable[str]) -> Disguise | None:
        """Sentinels that occur in none of `texts`; None when the texts have used up too many of them."""
        used: set[str] = set().union(*texts)
        codes = (code for low, high in SENTINEL_RANGES for code in range(low, high + 1))
        free = (chr(code) for code in codes if chr(code) not in used)
        pairs = list(zip(self._characters, free, strict=False))
        if len(pairs) < len(self._characters):
            return None
        return Disguise(dict(pairs), {ord(mark): character for character, mark in pairs})

    def hide(self, text: str, disguise: Disguise) -> str:
        """Put sentinels for the first characters of special texts, and of fragments at either end."""
        characters = list(text)
        for position in self._dangers(text):
            characters[position] = disguise.hide[text[position]]
        return "".join(characters)

    def split(self, text: str) -> list[str | SpecialToken]:
        """Cut `text` at its special tokens, in order; whitespace that a token swallows is left out."""
        parts: list[str | SpecialToken] = []
        start, is_stripping = 0, False
        for match in self._whole.finditer(text):
            token = self.by_text[match.group()]
            between = text[start : match.start()]
            between = between.lstrip() if is_stripping else between
            parts += [between.rstrip() if token.is_left_stripping else between, token]
            start, is_stripping = match.end(), token.is_right_stripping
        parts.append(text[start:].lstrip() if is_stripping else text[start:])
        return [part for part in parts if part != ""]

    def _dangers(self, text: str) -> list[int]:
        """Positions where a special text starts in `text`, or would if text beside it completed one.

        The ends are looked at without their whitespace too, because templates trim.
        """
        positions = [match.start() for match in self._starts.finditer(text)]
        left, right = len(text) - len(text.lstrip()), len(text.rstrip())
        for start, end in {(0, len(text)), (left, right)}:
            for length in range(1, min(self._fragment_max, end - start) + 1):
                if text[start : start + length] in self._tails:
                    positions.append(start)
                if text[end - length : end] in self._heads:
                    positions.append(end - length)
        return positions


def _starting_patterns(texts: Iterable[str]) -> Iterable[str]:
    """For each first character a pattern of it alone, where the rest of a special text follows.

    Overlapping special texts are then all found in one pass, each at its first character.
    """
    rests: dict[str, list[str]] = {}
    for text in texts:
        rests.setdefault(text[0], []).append(re.escape(text[1:]))
    return [f"{re.escape(first)}(?={'|'.join(options)})" for first, options in rests.items()]
