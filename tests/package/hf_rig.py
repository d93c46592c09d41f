"""Small random models as a hub would hold them: a Hugging Face directory of safetensors, made with transformers.

320 tokens, two layers, the tokenizer of `tiny_model`. In a nervous model gains above those of a fresh one let what was
read earlier weigh against the last token, so that every position matters; it does not survive four bits. In a calm one
the head expects the token after the last, and the layers only disturb that, as in a trained model.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from calserve.package.pack.tokenizer import build_tokenizer
from tiny_model import CHAT_TEMPLATE, CONTROL_TOKENS, tiny_vocabulary

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 320, 128, 4, 2, 32

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 318,
    "eos_token_id": 319,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": HEAD_DIM}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {"head_dim": HEAD_DIM, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    ),
}


def write_model(root: Path, family: str = "llama", dtype: str = "float32", calm: bool = False, **config: Any) -> Path:
    """Write a random model of `family`, its tokenizer and its chat template into the new directory `root`."""
    import torch
    import transformers

    config_name, model_name, more = FAMILIES[family]
    torch.manual_seed(20260802)
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**{**SHAPE, **more, **config}))
    gains = {"embed_tokens": 4.0, "lm_head": 4.0, "q_proj": 2.0, "v_proj": 2.0}
    if calm:
        gains |= {"o_proj": 0.1, "down_proj": 0.1}
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:
                gain = next((gain for part, gain in gains.items() if part in name), 1.0)
                weights.copy_(gain * torch.randn(weights.shape) / weights.shape[-1] ** 0.5)
            elif name.endswith("bias"):
                weights.copy_(0.1 * torch.randn(weights.shape))
        if calm:
            model.lm_head.weight.copy_(model.model.embed_tokens.weight.roll(-1, 0))
    model.to(getattr(torch, dtype)).save_pretrained(root)
    write_texts(root)
    return root


def write_plain_model(root: Path, **config: Any) -> Path:
    """As `write_model`, by hand and without torch: a llama of zeros, for whatever is judged before weights are read."""
    root.mkdir(parents=True)
    values = {**SHAPE, "model_type": "llama", "architectures": ["LlamaForCausalLM"], **config}
    (root / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v is not None}), encoding="utf-8")
    shapes = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "lm_head.weight": [VOCAB, HIDDEN]}
    shapes["model.norm.weight"] = [HIDDEN]
    for i in range(2):
        at = f"model.layers.{i}."
        shapes |= {f"{at}{norm}layernorm.weight": [HIDDEN] for norm in ("input_", "post_attention_")}
        shapes |= {f"{at}self_attn.{part}_proj.weight": [HIDDEN, HIDDEN] for part in "qo"}
        shapes |= {f"{at}self_attn.{part}_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN] for part in "kv"}
        shapes |= {f"{at}mlp.{part}_proj.weight": [256, HIDDEN] for part in ("gate", "up")}
        shapes[f"{at}mlp.down_proj.weight"] = [HIDDEN, 256]
    write_safetensors(root / "model.safetensors", shapes)
    write_texts(root)
    return root


def write_safetensors(path: Path, shapes: dict[str, list[int]], dtype: str = "BF16") -> None:
    """Zeros of two bytes an element, as the format lays them: eight bytes of length, a JSON head, the data."""
    head, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))


def write_texts(root: Path) -> None:
    """The tokenizer and the chat template of `tiny_model`."""
    tokens, merges = tiny_vocabulary(VOCAB)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in CONTROL_TOKENS else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
    }
    build_tokenizer(metadata).save(str(root / "tokenizer.json"))
    (root / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None takes one away."""
    value = json.loads(path.read_bytes()) | changes
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}), encoding="utf-8")
