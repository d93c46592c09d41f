"""A person's YAML file into checked values, or one clause that says what is wrong with it.

A word every ring may use. Owns: opening a file without waiting for it, refusing what YAML lets through silently
(keys that stand twice, nesting and aliases that never end), and putting the key first in an error. Must not know
what any file is for: whoever reads one puts its own name and its own exception around `Wrong`.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

# A file a person writes is some pages of text; anything larger is the wrong file.
MAX_FILE_BYTES = 1 << 20
# Ours nest some five levels.
MAX_DEPTH = 64
# A wrong value is quoted in the sentence about it, and may be as long as the file.
MESSAGE_MAX = 200

T = TypeVar("T")


class Wrong(ValueError):
    """What is wrong, as a clause that ends with a full stop and follows the file's name and a colon."""


class NoYaml(Wrong):
    """The text is not YAML, or holds a value that is none (a date that does not exist)."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"not valid YAML ({detail}).")


class _UniqueKeys(yaml.SafeLoader):
    """YAML lets a later key win silently; an operator's second `max_inflight:` must not. Keys are plain words."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise Wrong(f"a key on line {key_node.start_mark.line + 1} is a list or a mapping.")
            if key_node.value in seen:
                line = key_node.start_mark.line + 1
                raise Wrong(f"the key {key_node.value[:80]!r} stands twice, on line {line}.")
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def read_text(path: Path, what: str) -> str:
    """The text of a regular file of at most 1 MiB. what: the word for such a file, e.g. "configuration".

    Opened without waiting: a FIFO nobody writes to would hold its reader for ever.

    Raises:
        Wrong: it is no file, too large or not UTF-8.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise Wrong(f"not a regular file, so it is no {what}.")
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise Wrong(f"larger than {MAX_FILE_BYTES} bytes, so it is no {what}.")
        return content.decode("utf-8")
    except OSError as error:
        raise Wrong(f"{error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise NoYaml(f"not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise error if isinstance(error, Wrong) else Wrong("not the name of a file.") from None


def parse(text: str) -> Any:
    """The one document in `text`. What is JSON is read as JSON: YAML takes 1e-05 for a text.

    Raises:
        NoYaml: it is not YAML, nested more than 64 levels deep, or uses aliases.
        Wrong: a key stands twice, or is no plain word.
    """
    try:
        if text.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                return json.loads(text, object_pairs_hook=_unique_pairs)
        _check_shape(text)
        return yaml.load(text, _UniqueKeys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" on line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise NoYaml(f"{' '.join((error.problem or error.context or 'wrong').split())[:200]}{place}") from None
    except yaml.reader.ReaderError as error:
        raise NoYaml(f"the character {error.character!r} at {error.position}") from None
    except RecursionError:
        raise NoYaml("nested too deeply") from None
    except Wrong:
        raise
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, KeyError, AttributeError) as error:
        # PyYAML's constructors let the errors of what they call through.
        raise NoYaml(f"a value cannot be read: {' '.join(str(error).split())[:100]}") from None


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in pairs:
        if key in tree:
            raise Wrong(f"the key {key[:80]!r} stands twice.")
        tree[key] = value
    return tree


def _check_shape(text: str) -> None:
    """Before anything recursive runs: depth, and aliases, of which a page can stand for more than a memory holds."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise NoYaml("nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            raise NoYaml("it uses an alias: write the value out")


def convert(tree: Any, kind: type[T]) -> T:
    """`tree` as a checked `kind`, without turning one type into another.

    Raises:
        Wrong: the first key that does not fit, first, as an operator reads it.
    """
    try:
        return msgspec.convert(tree, kind, strict=True)
    except msgspec.ValidationError as error:
        # msgspec says `Expected `int`, got `str` - at `$.batch.x``.
        plain = " ".join(str(error).split()).encode("ascii", "backslashreplace").decode()
        message, separator, path = plain.rpartition(" - at `$") if " - at `$" in plain else (plain, "", "")
        message = message if len(message) <= MESSAGE_MAX else f"{message[:MESSAGE_MAX]}..."
        key = path.rstrip("`").lstrip(".")
        raise Wrong(f"{key}: {message}." if separator and key else f"{message}.") from None
