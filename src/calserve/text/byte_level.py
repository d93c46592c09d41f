"""The byte alphabet of byte-level BPE, and the bytes of each token of a vocabulary.

Owns the table from GPT-2's encoder, under which every byte has a printable character. Must not know streams.
"""


def byte_alphabet() -> dict[str, int]:
    """Character to byte, as in GPT-2's `bytes_to_unicode`.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the characters from
    U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + index), byte) for index, byte in enumerate(others))
    return alphabet


def token_to_bytes(token: str, alphabet: dict[str, int]) -> bytes:
    """The bytes of one token; a token with a character outside the alphabet stands for its own text.

    The tokenizers library decodes added tokens by this rule.
    """
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode("utf-8")
