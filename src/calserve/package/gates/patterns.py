"""How much a tokenizer's regular expressions may ask of the library that compiles them.

Owns the bounds on a pattern's length, nesting and counted repeats; a compiler unrolls `(a{1000}){1000}` into a million
steps. Must not know what a pattern matches. Pure, and linear in the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

PATTERN_CHARS_MAX = 4096  # the longest of published tokenizers are some 500
PATTERN_DEPTH_MAX = 32
REPEATS_MAX = 2000  # of all counted repeats of a pattern, multiplied
TREE_DEPTH_MAX = 64
_COUNT = re.compile(r"\{(\d{0,9}),?(\d{0,9})\}")


def size_complaint(pattern: str) -> str:
    """What is too large about a pattern, as a verb phrase; empty when nothing is."""
    if len(pattern) > PATTERN_CHARS_MAX:
        return f"has {len(pattern)} characters, more than {PATTERN_CHARS_MAX}"
    depth = deepest = 0
    for character in pattern:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > PATTERN_DEPTH_MAX:
        return f"is nested {deepest} levels deep, more than {PATTERN_DEPTH_MAX}"
    repeats = 1
    for low, high in _COUNT.findall(pattern):
        repeats *= max(1, int(high or low or 1))
        if repeats > REPEATS_MAX:
            return f"repeats a part more than {REPEATS_MAX} times"
    return ""


def pattern_complaint(
    tree: Any, judge: Callable[[str], str] = size_complaint, skip: tuple[str, ...] = (), depth: int = 0
) -> str:
    """What `judge` says of a pattern anywhere in decoded JSON, as a verb phrase; empty when nothing.

    A pattern is the value of a "Regex" key. skip: keys that hold no pattern and may be large.
    """
    if depth > TREE_DEPTH_MAX:
        return f"is nested more than {TREE_DEPTH_MAX} levels deep"
    if isinstance(tree, dict):
        regex = tree.get("Regex")
        if isinstance(regex, str) and (wrong := judge(regex)):
            return wrong
        inner = [value for key, value in tree.items() if key not in skip]
    elif isinstance(tree, list):
        inner = tree
    else:
        return ""
    return next((wrong for value in inner if (wrong := pattern_complaint(value, judge, skip, depth + 1))), "")
