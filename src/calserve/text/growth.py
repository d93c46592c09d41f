"""How much longer a tokenizer may make a text, read off its file.

Owns worst cases: a Replace of one letter by ten million would turn a short prompt into all of the memory there is. Must
not know the library that runs the file. Pure; linear in the file, but for its vocabulary.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# Byte-level alphabets make up to four characters of one; published pipelines stay at half of this.
GROWTH_MAX = 32
# Ids a post-processor adds to a text; published ones add one or two.
ADDED_IDS_MAX = 64
# A token's text; published vocabularies have runs of some hundreds of spaces or dashes.
TOKEN_CHARS_MAX = 4096
# The longest compatibility decomposition of one character: U+FDFA (Unicode 16.0, UAX 15).
FORM_GROWTH = 18
# Normal forms are settled after one pass; a second name for one is common, a third one only feeds a loop.
FORMS_MAX = 2
PARTS_MAX = 64
DEPTH_MAX = 8

_FORMS: Final = ("NFC", "NFD", "NFKC", "NFKD")
_STEPS: Final[Mapping[str, str]] = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers",
                                    "decoder": "decoders", "post_processor": "processors"}  # fmt: skip
_TAGS: Final = ("continuing_subword_prefix", "end_of_word_suffix")
_TAG_CHARS_MAX = 64


@dataclass(slots=True)
class Growth:
    """factor: characters made of one, beside Unicode's own forms. forms: how many of these there are. ids: added to a
    text. decoded: characters made of one by the decoder."""

    factor: int = 1
    forms: int = 0
    ids: int = 0
    decoded: int = 1

    @property
    def whole(self) -> int:
        """Characters that may be made of one, all in all."""
        return self.factor * (1, FORM_GROWTH, FORM_GROWTH**2)[min(self.forms, FORMS_MAX)]

    def complaint(self) -> str:
        """What of it is too much, as a verb phrase; empty when nothing is."""
        for what, found, most in (
            ("makes up to {} characters of one", self.factor, GROWTH_MAX),
            ("normalizes to {} Unicode forms", self.forms, FORMS_MAX),
            ("adds {} ids to a text", self.ids, ADDED_IDS_MAX),
            ("decodes up to {} characters from one", self.decoded, GROWTH_MAX),
        ):
            if found > most:
                return f"{what.format(found if found < 1 << 63 else 'countless')}, more than {most}"
        return ""


class TooManyParts(ValueError):
    """A pipeline of more parts, or nested deeper, than is counted."""


def growth_complaint(tree: Mapping[str, Any]) -> str:
    """What of a decoded `tokenizer.json` grows a text too much, as a verb phrase; empty when nothing does."""
    try:
        wrong = growth_of(tree).complaint()
    except TooManyParts as error:
        return str(error)
    return wrong or _token_complaint(tree)


def growth_of(tree: Mapping[str, Any]) -> Growth:
    """The worst case of a decoded `tokenizer.json`. Raises TooManyParts."""
    found = Growth()
    for role in _STEPS:
        for part in _parts(tree.get(role), _STEPS[role], 0):
            _count(role, part, found)
    return found


def _parts(part: Any, key: str, depth: int) -> list[Mapping[str, Any]]:
    """Steps in order, sequences opened."""
    if not isinstance(part, Mapping):
        return []
    if part.get("type") != "Sequence":
        return [part]
    inner = part.get(key)
    if depth >= DEPTH_MAX or (isinstance(inner, list) and len(inner) > PARTS_MAX):
        raise TooManyParts(f"is nested more than {DEPTH_MAX} levels deep or has more than {PARTS_MAX} steps")
    steps = [step for each in (inner if isinstance(inner, list) else []) for step in _parts(each, key, depth + 1)]
    if len(steps) > PARTS_MAX:
        raise TooManyParts(f"has more than {PARTS_MAX} steps")
    return steps


def _count(role: str, part: Mapping[str, Any], found: Growth) -> None:
    kind = part.get("type")
    if role == "post_processor":
        _count_added(kind, part, found)
    elif role == "decoder":
        if kind == "Replace":
            found.decoded *= _replaced(part)
    elif kind in _FORMS:
        found.forms += 1
    elif kind == "Precompiled":
        longest = _longest_mapped(part.get("precompiled_charsmap"))
        if longest <= FORM_GROWTH:
            found.forms += 1
        else:
            found.factor *= longest
    else:
        found.factor *= _factor(kind, part)


def _factor(kind: Any, part: Mapping[str, Any]) -> int:
    if kind == "Replace":
        return _replaced(part)
    if kind == "Prepend":  # once for each piece between added tokens
        return 1 + len(str(part.get("prepend", "")))
    # Four bytes of a character, each a character; spaces around it; a mark before each piece.
    return {"ByteLevel": 4, "BertNormalizer": 3, "Metaspace": 2}.get(str(kind), 1)


def _replaced(part: Mapping[str, Any]) -> int:
    """By a pattern that may match nothing, content comes in at every place."""
    content, pattern = len(str(part.get("content", ""))), part.get("pattern")
    text = pattern.get("String") if isinstance(pattern, Mapping) else None
    if isinstance(text, str) and text:
        return max(1, -(-content // len(text)))
    return 1 + content


def _longest_mapped(charsmap: Any) -> int:
    """Characters of the longest text in a SentencePiece character map: a trie's size and units, then texts, each ended
    by a zero byte."""
    try:
        data = base64.b64decode(charsmap, validate=True) if isinstance(charsmap, str) else b""
    except (binascii.Error, ValueError):
        return 1  # its own parser says so
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max((len(text.decode("utf-8", "replace")) for text in texts.split(b"\0")), default=1)


def _count_added(kind: Any, part: Mapping[str, Any], found: Growth) -> None:
    if kind in ("BertProcessing", "RobertaProcessing"):
        found.ids += 2
        return
    single, named = part.get("single"), part.get("special_tokens")
    if kind != "TemplateProcessing" or not isinstance(single, list):
        return
    texts = 0
    for piece in single:
        token = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
        if not isinstance(token, Mapping):
            texts += 1
            continue
        known = named.get(token.get("id")) if isinstance(named, Mapping) else None
        ids = known.get("ids") if isinstance(known, Mapping) else None
        found.ids += len(ids) if isinstance(ids, list) else 1
    found.factor *= max(1, texts)


def _token_complaint(tree: Mapping[str, Any]) -> str:
    model = tree.get("model")
    if not isinstance(model, Mapping):
        return ""
    for tag in _TAGS:
        value = model.get(tag)
        if isinstance(value, str) and len(value) > _TAG_CHARS_MAX:
            return f"marks pieces with {len(value)} characters, more than {_TAG_CHARS_MAX}"
    vocabulary, added = model.get("vocab"), tree.get("added_tokens")
    tokens: list[Any] = list(vocabulary) if isinstance(vocabulary, (Mapping, list)) else []
    texts = [token[0] if isinstance(token, list) and token else token for token in tokens]
    texts += [token.get("content") for token in added if isinstance(token, Mapping)] if isinstance(added, list) else []
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    return f"has a token of {longest} characters, more than {TOKEN_CHARS_MAX}" if longest > TOKEN_CHARS_MAX else ""
