"""The tokenizer of one package: text to ids, ids to text, and the bytes of each token.

Owns the Hugging Face `tokenizers` objects and the guard that text from outside never becomes a special
token. Must not know chats, streams or requests. Made once when a package is loaded; every method may be
called from any thread.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as HfTokenizer

from calserve.text.byte_level import byte_alphabet, token_to_bytes
from calserve.text.growth import growth_of
from calserve.text.specials import SpecialTexts, SpecialToken

# Characters a text may become inside the library, which keeps some 40 bytes of each: 2 GB at the very most. Ordinary
# text of 128 Ki tokens through a byte-level alphabet is some 2 Mi.
GROWN_CHARS_MAX = 1 << 26
BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


class InvalidText(ValueError):
    """Text that has no UTF-8 form: a lone surrogate. The message is one sentence for the client."""


class TokenizerFailed(InvalidText):
    """The library gave up on a text. The message is one sentence for the client."""


class Tokenizer:
    """One package's tokenizer.

    Invariants: immutable after construction. `encode` never gives a special id for user text. `specials`
    lists the texts of exactly the `special_ids`. `byte_table` is None unless the tokenizer is byte-level
    BPE; then entry i holds the bytes of token i, empty for an id that does not exist or is special.
    """

    def __init__(self, json_text: str, special_ids: Iterable[int] = (), eos_ids: Iterable[int] = ()) -> None:
        """
        Args:
            json_text: the contents of a `tokenizer.json`.
            special_ids: ids that the package declares special beside those the tokenizer itself marks so.
            eos_ids: ids that end a generation; they count as special.
        """
        declared = {*special_ids, *eos_ids}
        self._growth = _growth(json_text)
        # Two objects because the flag that stops special tokens from being parsed is not per call.
        self._plain = _load(json_text, declared)
        self._plain.encode_special_tokens = True
        self._parsing = _load(json_text, declared)
        added = {number: token for number, token in self._plain.get_added_tokens_decoder().items() if token.special}
        self.special_ids = frozenset(added)
        self.eos_ids = frozenset(eos_ids)
        self.specials = SpecialTexts(
            SpecialToken(number, token.content, token.lstrip, token.rstrip) for number, token in added.items()
        )
        normalised = self._plain.normalizer is not None and any(token.normalized for token in added.values())
        # Where a normalizer can turn harmless text into a special token, whole texts are never parsed.
        self.can_parse_whole = not normalised
        self.vocab_size = self._plain.get_vocab_size(with_added_tokens=True)
        self.byte_table = self._make_byte_table()
        vocabulary = self._plain.get_vocab(with_added_tokens=True)
        self._byte_tokens = {number for token, number in vocabulary.items() if BYTE_TOKEN.fullmatch(token)}

    @classmethod
    def from_file(cls, path: Path | str, special_ids: Iterable[int] = (), eos_ids: Iterable[int] = ()) -> Self:
        """Read a `tokenizer.json`.

        Raises:
            ValueError: when the file is no tokenizer, or declares an id that does not exist.
            OSError: when it cannot be read.
        """
        return cls(Path(path).read_text(encoding="utf-8"), special_ids, eos_ids)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Ids of plain text; special tokens written in it are encoded as the characters they are.

        Args:
            text: any text without lone surrogates.
            add_special: let the tokenizer's own post-processor add its marks, such as a beginning-of-text
            token.
        """
        return self.encode_many([text], add_special=add_special)[0]

    def encode_many(self, texts: Sequence[str], *, add_special: bool = False) -> list[list[int]]:
        """`encode` for several texts, without holding the interpreter lock."""
        self._check_size(texts)
        return _encode(self._plain, texts, add_special)

    def encode_trusted(self, text: str) -> list[int]:
        """Ids of text whose special tokens are meant, such as a rendered template; nothing is added."""
        self._check_size([text])
        return _encode(self._parsing, [text], add_special=False)[0]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence; an id without a token gives nothing."""
        try:
            return str(self._plain.decode(list(ids), skip_special_tokens=skip_special))
        except _OURS:
            raise
        except BaseException as error:
            raise RuntimeError(f"The tokenizer cannot decode these ids: {_first_line(error)}.") from error

    def _check_size(self, texts: Sequence[str]) -> None:
        characters = sum(map(len, texts))
        most = GROWN_CHARS_MAX // self._growth
        if characters > most:
            raise InvalidText(f"The text has {characters} characters; this model's tokenizer takes at most {most}.")

    def has_token(self, token: int) -> bool:
        return 0 <= token < 2**32 and self._plain.id_to_token(token) is not None

    def is_byte_token(self, token: int) -> bool:
        """Whether the token is one of `<0x00>` to `<0xFF>`, which stand for single bytes."""
        return token in self._byte_tokens

    def token_bytes(self, token: int) -> bytes:
        """What one token looks like alone, special ones included: for log-probabilities."""
        if self.byte_table is not None and token not in self.special_ids:
            return self.byte_table[token] if 0 <= token < len(self.byte_table) else b""
        return self.decode([token], skip_special=False).encode("utf-8")

    def _make_byte_table(self) -> list[bytes] | None:
        if not isinstance(self._plain.decoder, decoders.ByteLevel):
            return None
        alphabet = byte_alphabet()
        vocabulary = self._plain.get_vocab(with_added_tokens=True)
        table = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for token, number in vocabulary.items():
            if number not in self.special_ids:
                table[number] = token_to_bytes(token, alphabet)
        return table


# A panic of the library is no Exception, and neither is what ends this process.
_OURS = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)


def _growth(json_text: str) -> int:
    """Characters that the library may make of one."""
    try:
        tree = json.loads(json_text)
    except (ValueError, RecursionError):
        return 1  # the library itself says what is wrong
    return max(1, growth_of(tree).whole) if isinstance(tree, dict) else 1


def _load(json_text: str, declared: set[int]) -> HfTokenizer:
    try:
        tokenizer = HfTokenizer.from_str(json_text)
    except Exception as error:  # the library raises bare Exception for every bad file
        raise ValueError(f"The tokenizer cannot be read: {error}") from error
    # A file may carry its training run's truncation or padding, which would change prompts silently.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    known = tokenizer.get_added_tokens_decoder()
    for number in sorted(declared):
        token = tokenizer.id_to_token(number) if 0 <= number < 2**32 else None
        if token is None:
            raise ValueError(f"The tokenizer has no token {number}, which is declared special.")
        if number not in known or not known[number].special:
            added = known.get(number) or AddedToken(token, normalized=False)
            tokenizer.add_special_tokens([added])
    return tokenizer


def _encode(tokenizer: HfTokenizer, texts: Sequence[str], add_special: bool) -> list[list[int]]:
    try:
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special)
    except TypeError as error:
        # The library's message names its own types; the cause is always text without a UTF-8 form.
        raise InvalidText("The text has a lone surrogate, which is no character.") from error
    except _OURS:
        raise
    except BaseException as error:
        raise TokenizerFailed(f"The model's tokenizer cannot take this text: {_first_line(error)}.") from error
    return [encoding.ids for encoding in encodings]


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
