"""A tiny random Llama as a GGUF file: real format, real tokenizer, no meaning. Packs in a second or two.

320 tokens: the 256 bytes in GPT-2's byte alphabet, merges over the alphabet, three control tokens at the end. The
weights come from a fixed seed; embedding and output are not tied, or the model would only repeat its last token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    "Ġ t|Ġ a|h e|i n|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|Ġ o|e n|Ġ c|i t|i s|a n|o r|e s|Ġ b|e d|Ġ f|in g|Ġ p|o u|Ġa n|"
    "a l|a r|Ġt o|Ġ m|Ġo f|Ġ in|Ġ d|Ġ h|Ġan d|i c|a s|l e|Ġt h|i on|o m|l l|en t|Ġ n|Ġ l|s t|Ġ re|v e|Ġ e|r o|"
    "l y|Ġb e|Ġ g|ĠT he|Ġ T|c t|Ġ S|i d|o t|Ġ I|u t|a m|o l|Ġ y"
)


@dataclass(frozen=True)
class TinyShape:
    """Sizes of the model; `heads * head_dim` is the hidden width."""

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    feed_forward: int = 256
    context: int = 512
    vocab: int = 320


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins of the 256 bytes, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + rest.index(b)) for b in range(256)]


def tiny_vocabulary(size: int = 320) -> tuple[list[str], list[str]]:
    """Tokens and merges, exactly `size` tokens with the control tokens last; as many merges as there is room for."""
    tokens = byte_alphabet()
    merges: list[str] = []
    for merge in MERGES.split("|"):
        left, right = merge.split(" ")
        if len(tokens) < size - len(CONTROL_TOKENS) and {left, right} <= set(tokens):
            tokens.append(left + right)
            merges.append(merge)
    assert len(tokens) == size - len(CONTROL_TOKENS) == len(set(tokens)), "not enough merges for this size"
    return [*tokens, *CONTROL_TOKENS], merges


def write_tiny_gguf(path: Path, shape: TinyShape | None = None, **overrides: object) -> Path:
    """Write the model. overrides: metadata to put in place of the usual, by full key (None leaves a key out)."""
    size = shape or TinyShape()
    arch = str(overrides.pop("general.architecture", "llama"))
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**_metadata(size, arch), **overrides}.items():
        _add(writer, key, value)
    for name, values in tiny_weights(size).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_weights(shape: TinyShape) -> dict[str, np.ndarray]:
    """float32 norms and float16 matrices, [out, in], from a fixed seed."""
    rng = np.random.default_rng(20260802)
    hidden, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (gain * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float16)

    # Gains above 1 let what was read earlier weigh against the last token, so that every position matters.
    weights = {"token_embd.weight": matrix(shape.vocab, hidden, gain=4.0)}
    for i in range(shape.layers):
        weights |= {
            f"blk.{i}.attn_norm.weight": np.ones(hidden, np.float32),
            f"blk.{i}.attn_q.weight": matrix(hidden, hidden, gain=2.0),
            f"blk.{i}.attn_k.weight": matrix(kv, hidden),
            f"blk.{i}.attn_v.weight": matrix(kv, hidden, gain=2.0),
            f"blk.{i}.attn_output.weight": matrix(hidden, hidden),
            f"blk.{i}.ffn_norm.weight": np.ones(hidden, np.float32),
            f"blk.{i}.ffn_gate.weight": matrix(shape.feed_forward, hidden),
            f"blk.{i}.ffn_up.weight": matrix(shape.feed_forward, hidden),
            f"blk.{i}.ffn_down.weight": matrix(hidden, shape.feed_forward),
        }
    weights["output_norm.weight"] = np.ones(hidden, np.float32)
    weights["output.weight"] = matrix(shape.vocab, hidden, gain=4.0)
    return weights


def _metadata(shape: TinyShape, arch: str) -> dict[str, object]:
    tokens, merges = tiny_vocabulary(shape.vocab)
    types = [3 if token in CONTROL_TOKENS else 1 for token in tokens]
    return {
        "general.name": "tiny",
        "general.basename": "tiny",
        f"{arch}.block_count": shape.layers,
        f"{arch}.context_length": shape.context,
        f"{arch}.embedding_length": shape.heads * shape.head_dim,
        f"{arch}.feed_forward_length": shape.feed_forward,
        f"{arch}.attention.head_count": shape.heads,
        f"{arch}.attention.head_count_kv": shape.kv_heads,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.vocab_size": shape.vocab,
        f"{arch}.rope.dimension_count": shape.head_dim,
        "general.file_type": 1,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": shape.vocab - 2,
        "tokenizer.ggml.eos_token_id": shape.vocab - 1,
        "tokenizer.ggml.unknown_token_id": shape.vocab - 3,
        "tokenizer.ggml.padding_token_id": shape.vocab - 1,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
