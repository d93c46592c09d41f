"""Small tokenizers, trained here: one byte-level like most models', one with byte fallback like Llama 2's."""

import json

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

from calserve.text import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. You are a helpful assistant.",
    "system user assistant im_start im_end: what is the capital of France? Paris is the capital.",
    "Ça va très bien, merci. Größe, naïve, 日本語のテキスト, 中文 文本, 👩‍👩‍👧 🙂🙂, नमस्ते",
    "def f(x):\n    return x + 1\n\n\tprint('hello world')",
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_byte_level() -> HfTokenizer:
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIALS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Added but not special, one with characters outside the byte alphabet.
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("｜tool ü｜", normalized=False)])
    return tokenizer


def make_byte_fallback() -> HfTokenizer:
    tokenizer = HfTokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS[:2], trainer)
    data = json.loads(tokenizer.to_str())
    vocabulary = data["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    data["model"]["byte_fallback"] = True
    tokenizer = HfTokenizer.from_str(json.dumps(data))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.fixture(scope="session")
def peer() -> HfTokenizer:
    """The byte-level tokenizer as the library alone sees it: where expected values come from."""
    return make_byte_level()


@pytest.fixture(scope="session")
def tokenizer(peer: HfTokenizer) -> Tokenizer:
    return Tokenizer(peer.to_str(), eos_ids=[2])


@pytest.fixture(scope="session")
def fallback_peer() -> HfTokenizer:
    return make_byte_fallback()


@pytest.fixture(scope="session")
def fallback_tokenizer(fallback_peer: HfTokenizer) -> Tokenizer:
    return Tokenizer(fallback_peer.to_str(), eos_ids=[2])
