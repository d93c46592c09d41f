"""A `tokenizers` tokenizer equal to the one inside a GGUF.

Owns the meaning of GGUF's tokenizer keys: vocabulary, merges, token types, pre-tokenizer name. Must not encode
requests. Every id, merge and special flag is compared with the source after building.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from calserve.package.fault import PackageError

CONTROL, USER_DEFINED = 3, 4  # `tokenizer.ggml.token_type`

# The splits that the families' own tokenizers make before merging.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = _WORDS % "1,3" + _REST
_QWEN2_SPLIT = _WORDS % "1" + _REST


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer; PackageError when the GGUF's kind of tokenizer is not one of those known here."""
    kind = metadata.get("tokenizer.ggml.model", "none")
    if kind != "gpt2":
        raise PackageError(
            "tokenizer_model", f"The tokenizer is of kind {kind}; only byte-level BPE (gpt2) can be packed."
        )
    try:
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        merges: list[str] = metadata["tokenizer.ggml.merges"]
        types: list[int] = metadata["tokenizer.ggml.token_type"]
    except KeyError as error:
        raise PackageError("gguf_key", f"The GGUF does not say {error.args[0]}.") from None
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or len(types) != len(tokens):
        raise PackageError("vocabulary", "The GGUF's vocabulary repeats a token or lacks token types.")
    try:
        pairs = [_pair(merge) for merge in merges]
        pre = str(metadata.get("tokenizer.ggml.pre", "default"))
        model = models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the library raises plain Exception for a merge outside the vocabulary
        raise PackageError("merges", f"The GGUF's merges do not fit its vocabulary ({error}).") from None
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    _add_special(tokenizer, tokens, types)
    _add_beginning(tokenizer, metadata, tokens)
    _check_equal(tokenizer, tokens, types)
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _pre_tokenizer(name: str) -> Any:
    whole: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    after_split: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def sequence(*parts: Any) -> Any:
        return pre_tokenizers.Sequence(list(parts))

    known: dict[str, Callable[[], Any]] = {
        "smollm": lambda: sequence(pre_tokenizers.Digits(individual_digits=True), whole),
        "gpt-2": lambda: whole,
        "llama-bpe": lambda: sequence(pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated"), after_split),
        "qwen2": lambda: sequence(pre_tokenizers.Split(Regex(_QWEN2_SPLIT), "isolated"), after_split),
    }
    if name not in known:
        raise PackageError(
            "pre_tokenizer",
            f"The GGUF's pre-tokenizer {name} is not known; known are {', '.join(known)}.",
            ",".join(known),
            name,
        )
    return known[name]()


def _add_special(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    control = [
        AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k == CONTROL
    ]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(
        [
            AddedToken(t, special=False, normalized=False)
            for t, k in zip(tokens, types, strict=True)
            if k == USER_DEFINED
        ]
    )


def _add_beginning(tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    """Where the GGUF asks for a beginning token, encoding with special tokens puts it first."""
    if not metadata.get("tokenizer.ggml.add_bos_token", False):
        return
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if not isinstance(bos, int) or not 0 <= bos < len(tokens):
        raise PackageError("bos", "The GGUF asks for a beginning token and does not say which.")
    name = tokens[bos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{name} $A", pair=f"{name} $A {name}:1 $B:1", special_tokens=[(name, bos)]
    )


def _check_equal(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    if tokenizer.get_vocab_size(with_added_tokens=True) != len(tokens):
        raise PackageError("vocabulary", "The tokenizer built from the GGUF has another number of tokens.")
    for i, token in enumerate(tokens):
        if tokenizer.id_to_token(i) != token:
            raise PackageError("vocabulary", f"Token {i} of the tokenizer built from the GGUF differs.")
    added = tokenizer.get_added_tokens_decoder()
    special = {i for i, token in added.items() if token.special}
    if special != {i for i, kind in enumerate(types) if kind == CONTROL}:
        raise PackageError("vocabulary", "The tokenizer built from the GGUF marks other tokens as special.")
