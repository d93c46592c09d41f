"""A simulated package that can be served: bytes for tokens, and the two files a service reads text by.

Owns: the vocabulary of 256 byte tokens, its tokenizer and chat template. Must not know: how text becomes a request.

A token is a byte. The thirteen bytes that occur in no UTF-8 text (RFC 3629, section 3: C0, C1, F5-FF) are the
control tokens, so every text has ids and no text has theirs. The model behind them is `oracle`'s: what it answers
means nothing, and every byte of it can be checked.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from calserve.runtime.contract import BoardPackage
from calserve.runtime.sim.figures import SimProfile
from calserve.runtime.sim.package import sim_package

VOCAB = 256
END_OF_TEXT, START, END = 0xC0, 0xC1, 0xF5
CONTROL_TOKENS = {
    END_OF_TEXT: "<|endoftext|>",
    START: "<|im_start|>",
    END: "<|im_end|>",
    **{byte: f"<|reserved_{byte:02x}|>" for byte in range(0xF6, 0x100)},
}
EOS_TOKEN_IDS = (END, END_OF_TEXT)
FILES = {"tokenizer": "tokenizer.json", "chat_template": "chat_template.jinja"}

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def served_sim_package(profile: SimProfile, model: str, root: Path) -> BoardPackage:
    """The package of `model` on `profile` over bytes, with its text files written into `root`.

    The profile's own vocabulary and end tokens are replaced; its board, graphs, times and proofs stay.
    Raises OSError when `root` cannot be written.
    """
    figures = dict.fromkeys(("vocab", "eos_token_ids"), "assumed: a token is a byte")
    sources = MappingProxyType({**profile.sources, **figures})
    profile = replace(profile, vocab=VOCAB, eos_token_ids=EOS_TOKEN_IDS, sources=sources)
    texts = {"tokenizer": tokenizer_json(), "chat_template": CHAT_TEMPLATE}
    root.mkdir(parents=True, exist_ok=True)
    files = {role: root.resolve() / name for role, name in FILES.items()}
    for role, path in files.items():
        path.write_text(texts[role], encoding="utf-8")
    package = sim_package(profile, model)
    identity = "".join((package.hash, *texts.values()))
    return replace(
        package,
        root=root.resolve(),
        hash=hashlib.sha256(identity.encode()).hexdigest(),
        files=MappingProxyType(files),
    )


def tokenizer_json() -> str:
    """A `tokenizers` file: byte-level BPE without a merge, so that id and byte are the same number."""
    alphabet = _byte_alphabet()
    vocabulary = {CONTROL_TOKENS.get(byte, alphabet[byte]): byte for byte in range(VOCAB)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tree: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": byte, "content": text, **flags, "special": True} for byte, text in sorted(CONTROL_TOKENS.items())
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    return json.dumps(tree, ensure_ascii=False, indent=1)


def _byte_alphabet() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2): itself, or one from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet, spare = [], 0x100
    for byte in range(256):
        alphabet.append(chr(byte if byte in plain else spare))
        spare += byte not in plain
    return alphabet
