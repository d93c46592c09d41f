"""Bounded, strict decoding of a package's YAML and JSON.

Owns how far bytes of unknown origin may make us work: their size, nesting and number of values, and the refusal of
tags, aliases and repeated keys. Must not know which file it reads beyond its struct. Nothing here can construct
anything but plain data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import yaml

MAX_TEXT_BYTES = 4 << 20  # manifests are kilobytes; a combined package of many models stays far below
MAX_NODES = 250_000
MAX_DEPTH = 32  # ours nest some eight levels

T = TypeVar("T")

# What plain words of our YAML mean; any other is a text. YAML 1.1 knows more (0x, 1:30, yes, dates): nobody means it.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}
# libyaml's parser where PyYAML was built with it: forty times as fast, which is what bounds the time.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Undecodable(ValueError):
    """What is wrong, as a clause without a full stop."""


def decode_yaml(data: bytes, kind: type[T]) -> T:
    """`data` as a `kind`. Raises Undecodable naming the field that is wrong, unknown or missing."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Undecodable(f"not UTF-8 at byte {error.start}") from None
    try:
        return msgspec.convert(_document(yaml.parse(text, _LOADER)), kind, strict=True)
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError, ValueError) as error:
        raise Undecodable(_first_line(error)) from None


def decode_json(data: bytes, kind: type[T]) -> T:
    """As `decode_yaml`, for JSON."""
    try:
        tree = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
        return msgspec.convert(tree, kind, strict=True)
    except UnicodeDecodeError as error:
        raise Undecodable(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise Undecodable("nested too deeply") from None
    except (msgspec.ValidationError, ValueError) as error:
        raise Undecodable(_first_line(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Undecodable(f"key {twice[:80]!r} is repeated")
    return found


def _finite(text: str) -> float:
    """1e400 is written as a number and read as none."""
    number = float(text)
    if not math.isfinite(number):
        raise Undecodable(f"{text[:80]} is too large a number")
    return number


def _no_constant(name: str) -> Any:
    raise Undecodable(f"{name} is no number")


def _document(events: Iterator[Any]) -> Any:
    """The one document of a stream of events. Iterative where it can be, bounded where it recurses."""
    for start in (yaml.StreamStartEvent, yaml.DocumentStartEvent):
        event = next(events)
        if not isinstance(event, start):
            raise Undecodable("it is empty")
    tree = _Composer(events).value(next(events), 0)
    next(events)
    if not isinstance(next(events), yaml.StreamEndEvent):
        raise Undecodable("it holds more than one document")
    return tree


class _Composer:
    """Values from events. Lives for one document."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._nodes = 0

    def value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            raise Undecodable("aliases are not allowed")
        if event.tag is not None:
            raise Undecodable(f"the tag {event.tag[:80]!r} is not allowed")
        if event.anchor is not None:
            raise Undecodable("anchors are not allowed, as aliases are not allowed")
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise Undecodable(f"it holds more than {MAX_NODES} values")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if depth >= MAX_DEPTH:
            raise Undecodable(f"it is nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.SequenceStartEvent):
            return self._items(depth)
        return self._pairs(depth)

    def _items(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self.value(event, depth + 1))
        return items

    def _pairs(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise Undecodable("a key must be a plain name")
            self.value(event, depth + 1)
            if event.value in pairs:
                raise Undecodable(f"key {event.value[:80]!r} is repeated")
            pairs[event.value] = self.value(next(self._events), depth + 1)
        return pairs


def _scalar(event: Any) -> object:
    text: str = event.value
    if event.style:  # quoted
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return _finite(text) if _FLOAT.fullmatch(text) else text


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
