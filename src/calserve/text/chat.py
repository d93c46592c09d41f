"""Chats to prompt ids: messages are checked, rendered by the package's template, and encoded.

Owns which messages are acceptable, and the promise that text typed by a user cannot become a control token.
Must not know requests or HTTP. Made once for each package; every method may be called from any thread.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from calserve.text.specials import Disguise, SpecialTexts, SpecialToken
from calserve.text.template import BoundedTemplate, ChatError, TemplateError
from calserve.text.tokenizer import InvalidText, Tokenizer

__all__ = ["ChatError", "ChatTemplate", "TemplateError"]

ROLES = ("system", "developer", "user", "assistant", "tool")
FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})
# Tool calls are the only nested part of a message; real ones nest some five levels.
NESTING_MAX = 32


class ChatTemplate:
    """A package's chat template and the texts of the tokens it may name.

    Invariants: immutable. A message's `role` is one of ROLES when the template sees it, and its `content` a
    string.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """
        Args:
            source: the Jinja source.
            tokens: variables such as `bos_token` and `eos_token`, with the texts they stand for.
            now: the clock behind `strftime_now`.

        Raises:
            TemplateError: when the source is too long or is no Jinja.
        """
        self._template = BoundedTemplate(source, now)
        self._tokens = dict(tokens or {})
        self._source = source
        self._knows_developer = "developer" in source

    def render_ids(
        self,
        messages: Sequence[Mapping[str, object]],
        tokenizer: Tokenizer,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The ids of a chat: the rendered text, with special tokens parsed where the template wrote them.

        Special tokens inside a message are hidden from the template behind private characters, so that the
        only ones left in its output are its own; the output is cut there and the rest encoded as plain
        text.

        Raises:
            ChatError: one sentence for the client.
        """
        checked = read_messages(messages)
        texts = [text for message in checked for text in _strings(message)]
        specials = tokenizer.specials
        try:
            if tokenizer.can_parse_whole and all(map(specials.is_safe, texts)):
                return tokenizer.encode_trusted(self._render(checked, add_generation_prompt))
            disguise = specials.choose_disguise([*texts, self._source, *self._tokens.values()])
            if disguise is None:
                raise ChatError("The messages use every private-use character, which leaves none to protect them.")
            hidden = [
                {field: value if field == "role" else _hide(value, specials, disguise) for field, value in m.items()}
                for m in checked
            ]
            parts = specials.split(self._render(hidden, add_generation_prompt))
            plain = [part.translate(disguise.show) for part in parts if isinstance(part, str)]
            encoded = iter(tokenizer.encode_many(plain))
        except InvalidText as error:
            raise ChatError(str(error)) from error
        ids: list[int] = []
        for part in parts:
            ids.extend([part.id] if isinstance(part, SpecialToken) else next(encoded))
        return ids

    def render(self, messages: Sequence[Mapping[str, object]], add_generation_prompt: bool = True) -> str:
        """The rendered text, for a person to read; `render_ids` is not made from it.

        Raises:
            ChatError: one sentence for the client.
        """
        return self._render(read_messages(messages), add_generation_prompt)

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        if not self._knows_developer:
            messages = [
                {**message, "role": "system"} if message["role"] == "developer" else message for message in messages
            ]
        return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **self._tokens)


def read_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """Check decoded JSON messages, and give each a string as content.

    Raises:
        ChatError: naming the message and what is wrong with it.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise ChatError("messages must be a list of at least one message.")
    return [_read_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _read_message(name: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatError(f"{name} must be an object.")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ChatError(f"{name}.role must be one of {', '.join(ROLES)}.")
    checked: dict[str, Any] = {"role": role, "content": _read_content(name, message)}
    for field, value in message.items():
        # Clients send back what they got, with null or [] in fields that they do not use.
        if field in checked or value is None or value == []:
            continue
        if field not in FIELDS:
            raise ChatError(f"{name}.{str(field)[:64]} is not supported.")
        if field in {"name", "tool_call_id"} and not isinstance(value, str):
            raise ChatError(f"{name}.{field} must be a string.")
        if field == "tool_calls" and not isinstance(value, list):
            raise ChatError(f"{name}.tool_calls must be a list.")
        checked[field] = value
    return checked


def _read_content(name: str, message: Mapping[str, object]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        if message["role"] == "assistant" and message.get("tool_calls"):
            return ""
        raise ChatError(f"{name}.content must be a string or a list of text parts, not null.")
    if not isinstance(content, list) or not content:
        raise ChatError(f"{name}.content must be a string or a list of at least one text part.")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text":
            raise ChatError(f"{name}.content[{index}] must be of type text; no other type is supported.")
        if not isinstance(text, str):
            raise ChatError(f"{name}.content[{index}].text must be a string.")
        texts.append(text)
    return "".join(texts)


def _strings(message: Mapping[str, Any]) -> Iterator[str]:
    """Every string in a message that a client chose: nested field names too, its own fields and role not."""
    waiting = [(value, 0) for field, value in message.items() if field != "role"]
    while waiting:
        value, depth = waiting.pop()
        if depth > NESTING_MAX:
            raise ChatError(f"A message is nested more than {NESTING_MAX} levels deep.")
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from value.keys()
            waiting.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list):
            waiting.extend((item, depth + 1) for item in value)


def _hide(value: Any, specials: SpecialTexts, disguise: Disguise) -> Any:
    """A copy with every string disguised. Field names stay, as the template looks for them."""
    if isinstance(value, str):
        return specials.hide(value, disguise)
    if isinstance(value, Mapping):
        if any(map(specials.is_inside, value)):
            raise ChatError("The name of a field in a message holds a control token.")
        return {key: _hide(item, specials, disguise) for key, item in value.items()}
    if isinstance(value, list):
        return [_hide(item, specials, disguise) for item in value]
    return value
