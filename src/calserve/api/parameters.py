"""From a body's bytes to a checked `Ask`, or to the 400 that names the field.

Owns every rule about values that needs neither the model's vocabulary nor its context. Must not know the model:
what depends on it is checked by the service and by `core`. Cost: one pass of the decoder; nothing here grows faster
than the body.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from calserve.api import errors
from calserve.api.schemas import NO_OP_VALUES, ChatBody, Common, CompletionBody, Message
from calserve.service.generation import MAX_CHOICES, Ask
from calserve.service.terms import InvalidParameter, SamplingParams, parse_sampling

# OpenAI's default for the completions endpoint.
COMPLETION_MAX_TOKENS = 16
# No context is longer; above it a number is a mistake and no arithmetic should see it.
TOKENS_MAX = 1 << 31
# Ours: OpenAI admits 4 stop strings; each costs a little per token, and building their automaton some microseconds
# per character.
STOPS_MAX, STOP_CHARS_MAX, STOP_CHARS_TOTAL_MAX = 16, 1024, 4096
STOP_TOKEN_IDS_MAX = 128
# Ours: a message costs a few bytes to send and some microseconds to render.
MESSAGES_MAX = 4096
# OpenAI's limits.
COMPLETION_LOGPROBS_MAX = 5
LOGIT_BIAS_MAX = 100
ROLES = ("system", "developer", "user", "assistant")
# No no-op value is longer, and no logit bias of 1,024 entries.
_NO_OP_BYTES_MAX, _LOGIT_BIAS_BYTES_MAX = 64, 1 << 16
_SHOWN_CHARS = 64

B = TypeVar("B", bound=Common)

# msgspec's sentences. An unknown field's name is the client's, and may have anything in it, backticks too.
_PATH = r"(?: - at `\$((?:\.\w+|\[[0-9.]+\])*)`)?"
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`" + _PATH, re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(\w+)`" + _PATH)
_OTHER = re.compile(r"(.*?)" + _PATH, re.DOTALL)
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class Invalid(Exception):
    """A value that is refused; raised and caught within this module."""

    def __init__(self, param: str | None, message: str) -> None:
        super().__init__(message)
        self.error = errors.invalid(param, message)


_COMPLETION = msgspec.json.Decoder(CompletionBody)
_CHAT = msgspec.json.Decoder(ChatBody)


def parse_completion(body: bytes, arrived_ns: int) -> tuple[CompletionBody, Ask] | errors.ApiError:
    """`POST /v1/completions`."""
    try:
        asked = _decode(_COMPLETION, body)
        prompts = _prompts(asked.prompt)
        _check_inert(asked, "")
        limit = _max_tokens(asked) or COMPLETION_MAX_TOKENS
        logprobs = _bounded("logprobs", asked.logprobs, 0, COMPLETION_LOGPROBS_MAX)
        return asked, _ask(asked, "cmpl", arrived_ns, limit, _sampling(asked, logprobs), prompts=prompts)
    except Invalid as invalid:
        return invalid.error


def parse_chat(body: bytes, arrived_ns: int) -> tuple[ChatBody, Ask] | errors.ApiError:
    """`POST /v1/chat/completions`."""
    try:
        asked = _decode(_CHAT, body)
        if len(asked.messages) > MESSAGES_MAX:
            raise Invalid("messages", f"messages may have at most {MESSAGES_MAX}, not {len(asked.messages)}.")
        messages = tuple(_message(i, message) for i, message in enumerate(asked.messages))
        if not messages:
            raise Invalid("messages", "messages must have at least one message.")
        _check_inert(asked, "")
        sampling = _sampling(asked, _chat_logprobs(asked))
        return asked, _ask(asked, "chatcmpl", arrived_ns, _max_tokens(asked), sampling, messages=messages)
    except Invalid as invalid:
        return invalid.error


def _max_tokens(asked: Common) -> int | None:
    """OpenAI renamed it for chats; clients use both names on both routes."""
    _bounded("max_tokens", asked.max_tokens, 1, TOKENS_MAX)
    _bounded("max_completion_tokens", asked.max_completion_tokens, 1, TOKENS_MAX)
    if None not in (asked.max_tokens, asked.max_completion_tokens) and asked.max_tokens != asked.max_completion_tokens:
        raise Invalid("max_tokens", "max_tokens and max_completion_tokens differ; send one of them.")
    return asked.max_completion_tokens if asked.max_tokens is None else asked.max_tokens


def _decode(decoder: msgspec.json.Decoder[B], body: bytes) -> B:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except RecursionError:
        raise Invalid(None, "The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)[:200]
        if "truncated" in reason and _HALF_PAIR.search(body):
            # The decoder says the same of a text that ends in half of a pair.
            reason = "it ends early, or has half of a surrogate pair (\\ud800 to \\udfff)"
        raise Invalid(None, f"The body is not valid JSON: {reason}.") from None


def _field_error(text: str) -> Invalid:
    """msgspec's sentence with its path turned into OpenAI's `param`."""
    unknown, missing = _UNKNOWN_FIELD.fullmatch(text), _MISSING_FIELD.fullmatch(text)
    if unknown:
        name = _join((unknown[2] or "").lstrip("."), _shown(unknown[1]))
        return Invalid(name, f"{name} is not an option of this route.")
    if missing:
        name = _join((missing[2] or "").lstrip("."), missing[1])
        return Invalid(name, f"{name} is required.")
    other = _OTHER.fullmatch(text)
    assert other is not None, "the last pattern takes any text"
    message, parent = other[1], (other[2] or "").lstrip(".")
    return Invalid(parent or None, f"{parent or 'The body'}: {message}.")


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _check_inert(struct: msgspec.Struct, parent: str) -> None:
    """Refuse an unsupported option unless its value is the one that changes nothing."""
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if not isinstance(value, Raw) or name == "logit_bias":
            continue
        allowed = NO_OP_VALUES.get(name, frozenset({b"null", b"[]"}))
        if len(value) > _NO_OP_BYTES_MAX or _compact(value) not in allowed:
            path = _join(parent, name)
            values = " or ".join(sorted(text.decode() for text in allowed))
            raise Invalid(path, f"{path} is not supported by this route; it may only be {values}.")


def _compact(value: Raw) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(value))
    except (msgspec.DecodeError, RecursionError):
        return b""


def _bounded(name: str, value: int | None, low: int, high: int) -> int | None:
    if value is not None and not low <= value <= high:
        shown = value if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
        raise Invalid(name, f"{name} must be between {low} and {high}, not {shown}.")
    return value


def _sampling(asked: Common, logprobs: int | None) -> SamplingParams:
    """Ranges are the sampler's own; it names the field."""
    raw: dict[str, object] = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "min_p": asked.min_p,
        "seed": asked.seed,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "repetition_penalty": asked.repetition_penalty,
        "logit_bias": _logit_bias(asked.logit_bias),
        "logprobs": logprobs,
    }
    try:
        return parse_sampling(raw)
    except InvalidParameter as error:
        name = "top_logprobs" if error.name == "logprobs" and isinstance(asked, ChatBody) else error.name
        raise Invalid(name, error.message.replace(error.name, name, 1)) from None


def _logit_bias(value: Raw | UnsetType) -> object:
    if value is UNSET:
        return None
    if len(value) > _LOGIT_BIAS_BYTES_MAX:
        raise Invalid("logit_bias", f"logit_bias must have at most {_LOGIT_BIAS_BYTES_MAX} bytes, not {len(value)}.")
    try:
        decoded: object = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        raise Invalid("logit_bias", "logit_bias is not valid JSON.") from None
    if isinstance(decoded, dict):
        for key, bias in decoded.items():
            if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= LOGIT_BIAS_MAX:
                raise Invalid("logit_bias", f"logit_bias[{_shown(key)!r}] must be a number between -100 and 100.")
    return decoded


def _chat_logprobs(asked: ChatBody) -> int | None:
    if not asked.logprobs:
        if asked.top_logprobs is not None and asked.top_logprobs != 0:
            raise Invalid("top_logprobs", "top_logprobs needs logprobs to be true.")
        return None
    return asked.top_logprobs or 0


def _ask(
    asked: Common,
    label: str,
    arrived_ns: int,
    max_tokens: int | None,
    sampling: SamplingParams,
    *,
    prompts: tuple[str | tuple[int, ...], ...] = (),
    messages: tuple[Mapping[str, str], ...] = (),
) -> Ask:
    n = _bounded("n", asked.n, 1, MAX_CHOICES) or 1
    if n * max(len(prompts), 1) > MAX_CHOICES:
        field = "prompt" if n == 1 else "n"
        raise Invalid(field, f"{field}: one call may ask for {MAX_CHOICES} choices, not {n * len(prompts)}.")
    min_tokens = _bounded("min_tokens", asked.min_tokens, 0, TOKENS_MAX) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise Invalid("min_tokens", f"min_tokens ({min_tokens}) must not exceed max_tokens ({max_tokens}).")
    if asked.stream_options is not None and not asked.stream:
        raise Invalid("stream_options", "stream_options is only for requests with stream true.")
    return Ask(
        label=label,
        model=asked.model,
        sampling=sampling,
        arrived_ns=arrived_ns,
        is_streaming=bool(asked.stream),
        prompts=prompts,
        messages=messages,
        n=n,
        max_new_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(asked.ignore_eos),
        stops=_stops(asked.stop),
        stop_token_ids=_stop_token_ids(asked.stop_token_ids or ()),
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > STOPS_MAX:
        raise Invalid("stop", f"stop may have at most {STOPS_MAX} strings, not {len(stops)}.")
    for text in stops:
        if not 1 <= len(text) <= STOP_CHARS_MAX:
            raise Invalid("stop", f"a stop string must have 1 to {STOP_CHARS_MAX} characters, not {len(text)}.")
    total = sum(map(len, stops))
    if total > STOP_CHARS_TOTAL_MAX:
        raise Invalid("stop", f"stop may have at most {STOP_CHARS_TOTAL_MAX} characters together, not {total}.")
    return tuple(dict.fromkeys(stops))


def _stop_token_ids(ids: Sequence[int]) -> tuple[int, ...]:
    if len(ids) > STOP_TOKEN_IDS_MAX:
        raise Invalid("stop_token_ids", f"stop_token_ids may have at most {STOP_TOKEN_IDS_MAX} ids, not {len(ids)}.")
    for token in ids:
        _bounded("stop_token_ids", token, 0, TOKENS_MAX)
    return tuple(dict.fromkeys(ids))


def _prompts(prompt: str | list[str | int | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    """OpenAI's four forms. An empty prompt is refused: no token to start from is made up."""
    if isinstance(prompt, str):
        _check_filled([prompt])
        return (prompt,)
    if not prompt:
        raise Invalid("prompt", "prompt must not be empty.")
    texts = [item for item in prompt if isinstance(item, str)]
    if len(texts) == len(prompt):
        _check_filled(texts)
        return tuple(texts)
    lists = [item for item in prompt if isinstance(item, list)]
    if len(lists) == len(prompt):
        _check_filled(lists)
        return tuple(tuple(item) for item in lists)
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return (tuple(ids),)
    raise Invalid("prompt", "prompt must be a text, a list of texts, a list of token ids, or a list of such lists.")


def _check_filled(prompts: Iterable[str | list[int]]) -> None:
    for prompt in prompts:
        if not prompt:
            raise Invalid("prompt", "prompt must not be empty.")


def _message(index: int, message: Message) -> Mapping[str, str]:
    where = f"messages[{index}]"
    if message.role not in ROLES:
        raise Invalid(f"{where}.role", f"{where}.role must be one of {', '.join(ROLES)}, not {_shown(message.role)!r}.")
    _check_inert(message, where)
    if message.content is None:
        raise Invalid(f"{where}.content", f"{where}.content must be a text.")
    if isinstance(message.content, str):
        content = message.content
    else:
        for number, part in enumerate(message.content):
            if part.type != "text" or part.text is None:
                name = f"{where}.content[{number}]"
                raise Invalid(name, f"{name} must be a text part; other kinds are not supported.")
        content = "".join(part.text or "" for part in message.content)
    return {"role": message.role, "content": content}
