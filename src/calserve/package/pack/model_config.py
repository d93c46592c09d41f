"""What a Hugging Face `config.json` says of a model, judged before anything of it is loaded.

Owns the families that are packed, the bounds of every figure, what is refused, and which tensors a checkpoint of these
figures must hold. Must not know where weights lie or how they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from calserve.package.fault import PackageError

# model_type -> the one class that is loaded for it.
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
# Rotary scalings that do not change with the length of the prompt, which a compiled graph could not follow.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
# Beyond any model that is served; what a hostile file claims is refused before anything of that size is made.
MAX_LAYERS, MAX_EXPERTS, MAX_EXPERT_TENSORS = 1024, 4096, 1 << 17
# Texts, lists and tables that go on to the loader. Of the keys not named here only numbers and switches do: they can
# name neither a file nor code.
_KEPT_KEYS = ("model_type", "hidden_act", "rope_parameters", "rope_scaling", "layer_types", "mlp_only_layers")

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Layers = Annotated[int, msgspec.Meta(ge=1, le=MAX_LAYERS)]
Experts = Annotated[int, msgspec.Meta(ge=1, le=MAX_EXPERTS)]
Token = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Word = Annotated[str, msgspec.Meta(max_length=256)]


class Family(msgspec.Struct, frozen=True):
    """The one key that says which others there are."""

    model_type: Word


class ModelConfig(msgspec.Struct, frozen=True):
    """The figures of a decoder; keys as transformers writes them, others are allowed.

    head_dim, num_key_value_heads: None takes what the other figures give. experts: `num_experts` or the newer
    `num_local_experts`. mlp_only_layers, decoder_sparse_step: which layers of a mixture are dense.
    """

    model_type: Word
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    max_position_embeddings: Size
    hidden_act: Word = "silu"
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    use_sliding_window: bool | None = None
    layer_types: Annotated[tuple[Word, ...], msgspec.Meta(max_length=MAX_LAYERS)] | None = None
    rope_scaling: dict[Word, Any] | None = None
    rope_parameters: dict[Word, Any] | None = None
    eos_token_id: Token | Annotated[tuple[Token, ...], msgspec.Meta(max_length=64)] | None = None
    num_experts: Experts | None = None
    num_local_experts: Experts | None = None
    num_experts_per_tok: Experts | None = None
    moe_intermediate_size: Size | None = None
    decoder_sparse_step: Layers = 1
    mlp_only_layers: Annotated[tuple[Token, ...], msgspec.Meta(max_length=MAX_LAYERS)] | None = None
    auto_map: Any = None
    quantization_config: Any = None
    name: Word | None = None

    @property
    def experts(self) -> int:
        return self.num_local_experts or self.num_experts or 0

    @property
    def heads_width(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def attention_scaling(self) -> str:
        table = self.rope_parameters or self.rope_scaling or {}
        return str(table.get("rope_type", table.get("type", "default")))


def check_family(family: str, path: Path) -> None:
    """Raise PackageError: "not supported: ..." for a family that is not packed."""
    if family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise unsupported(f"{path} is of the {family} family; packing supports {known}", known, family)


def check_config(config: ModelConfig, path: Path) -> None:
    """Raise PackageError: "not supported: ..." for a model that cannot be packed, and why."""
    family = config.model_type
    check_family(family, path)
    if config.auto_map is not None:
        raise unsupported(f"{path} brings code of its own (auto_map), which is never run")
    if config.quantization_config is not None:
        table = config.quantization_config
        method = table.get("quant_method", "unknown") if isinstance(table, dict) else "unknown"
        raise unsupported(f"the weights of {path} are quantized already ({str(method)[:40]})")
    if config.use_sliding_window or set(config.layer_types or ()) - {"full_attention"}:
        raise unsupported(f"{path} has layers with attention to a sliding window")
    if config.attention_scaling not in ROPE_TYPES:
        raise unsupported(f"{path} scales its rotary positions by {config.attention_scaling[:40]}, as the prompt grows")
    if config.hidden_act != "silu":
        raise unsupported(f"{path} has the activation {config.hidden_act[:40]}, not silu")
    if config.num_attention_heads % config.kv_heads:
        raise PackageError("config", f"{path}: {config.kv_heads} KV heads do not divide {config.num_attention_heads}.")
    if family == "qwen3_moe":
        _check_experts(config, path)
    elif config.experts:
        raise unsupported(f"{path} is a {family} with {config.experts} experts")


def _check_experts(config: ModelConfig, path: Path) -> None:
    experts, chosen = config.experts, config.num_experts_per_tok or 0
    if not 1 <= chosen <= experts or config.moe_intermediate_size is None:
        raise PackageError("config", f"{path} does not say its experts: {experts}, of which {chosen} a token.")
    tensors = config.num_hidden_layers * experts
    if tensors > MAX_EXPERT_TENSORS:
        raise PackageError("config", f"{path} claims {tensors} experts in all.", MAX_EXPERT_TENSORS, tensors)


def unsupported(what: str, limit: object = "", given: object = "") -> PackageError:
    return PackageError("not_supported", f"not supported: {what}.", limit, given)


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor a checkpoint must hold; whatever else it holds is not read.

    A loader would fill a missing one with random numbers and make room for whatever the figures claim.
    """
    hidden = config.hidden_size
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}."
        yield f"{layer}input_layernorm.weight", (hidden,)
        yield f"{layer}post_attention_layernorm.weight", (hidden,)
        yield from _attention_tensors(config, f"{layer}self_attn.")
        if _is_mixture(config, i):
            yield f"{layer}mlp.gate.weight", (config.experts, hidden)
            for j in range(config.experts):
                yield from _feed_forward(f"{layer}mlp.experts.{j}.", hidden, config.moe_intermediate_size or 0)
        else:
            yield from _feed_forward(f"{layer}mlp.", hidden, config.intermediate_size)


def _is_mixture(config: ModelConfig, layer: int) -> bool:
    dense = layer in (config.mlp_only_layers or ())
    return config.experts > 0 and not dense and (layer + 1) % config.decoder_sparse_step == 0


def _attention_tensors(config: ModelConfig, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = config.heads_width
    sizes = {"q": config.num_attention_heads * width, "k": config.kv_heads * width, "v": config.kv_heads * width}
    has_bias = config.attention_bias or config.model_type == "qwen2"
    for part, size in sizes.items():
        yield f"{at}{part}_proj.weight", (size, config.hidden_size)
        if has_bias:
            yield f"{at}{part}_proj.bias", (size,)
    yield f"{at}o_proj.weight", (config.hidden_size, sizes["q"])
    if config.model_type in ("qwen3", "qwen3_moe"):
        yield f"{at}q_norm.weight", (width,)
        yield f"{at}k_norm.weight", (width,)


def _feed_forward(at: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}gate_proj.weight", (width, hidden)
    yield f"{at}up_proj.weight", (width, hidden)
    yield f"{at}down_proj.weight", (hidden, width)


def for_the_loader(raw: dict[str, Any], family: str) -> dict[str, Any]:
    """What of `config.json` the loader gets to see: figures and switches, and the few texts whose meaning is known."""
    kept = {
        key: value
        for key, value in raw.items()
        if not key.startswith("_") and (key in _KEPT_KEYS or value is None or isinstance(value, bool | int | float))
    }
    if isinstance(raw.get("eos_token_id"), list):
        kept["eos_token_id"] = raw["eos_token_id"]
    return {**kept, "architectures": [FAMILIES[family]], "model_type": family}
