"""Request bodies as clients send them: field names and JSON types, nothing about meaning.

Owns the complete list of known fields: one that stands in no struct is refused by name. Options of OpenAI's that are
not supported stand as `Raw`, so that their no-op values pass and any other value is refused by name without being
parsed. Must not know ranges: those are `parameters`' and the sampler's.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

# A field that is accepted only at a value that changes nothing.
Inert: TypeAlias = Raw | UnsetType

_NULL = b"null"
# OpenAI's defaults, which clients send explicitly. Compact JSON.
NO_OP_VALUES: MappingProxyType[str, frozenset[bytes]] = MappingProxyType(
    {
        "audio": frozenset({_NULL}),
        "best_of": frozenset({_NULL, b"1"}),
        "echo": frozenset({_NULL, b"false"}),
        "function_call": frozenset({_NULL, b'"none"'}),
        "functions": frozenset({_NULL, b"[]"}),
        "metadata": frozenset({_NULL, b"{}"}),
        "modalities": frozenset({_NULL, b'["text"]'}),
        "parallel_tool_calls": frozenset({_NULL, b"true", b"false"}),
        "prediction": frozenset({_NULL}),
        "reasoning_effort": frozenset({_NULL}),
        "response_format": frozenset({_NULL, b'{"type":"text"}'}),
        "service_tier": frozenset({_NULL, b'"auto"', b'"default"'}),
        "store": frozenset({_NULL, b"false"}),
        "suffix": frozenset({_NULL, b'""'}),
        "tool_choice": frozenset({_NULL, b'"none"', b'"auto"'}),
        "tools": frozenset({_NULL, b"[]"}),
        "verbosity": frozenset({_NULL, b'"medium"'}),
        "web_search_options": frozenset({_NULL}),
    }
)


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """continuous_usage_stats and the like are refused by name."""

    include_usage: bool | None = None


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """tool_calls, name and the like change the prompt, so they are not dropped silently."""

    role: str
    content: str | list[TextPart] | None = None
    name: Inert = UNSET
    tool_calls: Inert = UNSET
    tool_call_id: Inert = UNSET
    function_call: Inert = UNSET
    refusal: Inert = UNSET
    audio: Inert = UNSET
    annotations: Inert = UNSET


class Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints take. `user` is only for the client's own books: it is not a tenant and not logged."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Raw | UnsetType = UNSET
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    store: Inert = UNSET
    metadata: Inert = UNSET
    service_tier: Inert = UNSET


class CompletionBody(Common, frozen=True):
    """`POST /v1/completions`. prompt: text, texts, token ids, or lists of token ids."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    best_of: Inert = UNSET
    echo: Inert = UNSET
    suffix: Inert = UNSET


class ChatBody(Common, frozen=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    audio: Inert = UNSET
    function_call: Inert = UNSET
    functions: Inert = UNSET
    modalities: Inert = UNSET
    parallel_tool_calls: Inert = UNSET
    prediction: Inert = UNSET
    reasoning_effort: Inert = UNSET
    response_format: Inert = UNSET
    tool_choice: Inert = UNSET
    tools: Inert = UNSET
    verbosity: Inert = UNSET
    web_search_options: Inert = UNSET
