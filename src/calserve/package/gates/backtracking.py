"""Whether a tokenizer's regular expression may try without end on a text that does not match.

Owns a reading of the pattern that is coarser than the library's: a part is known by how often it may repeat and how
many ways it may match, never by what it matches. Must not know tokenizers. Pure, linear in the pattern. What published
tokenizers use passes; the library backtracks, so that `(a+)+$` takes as many steps as a text has subsets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

# Of one branch: two runs, as in `\s*[\r\n]+`, cost the square of a text's length at the worst; a third its cube.
RUNS_MAX = 2
# Ways of matching without runs: each `?` doubles them. Published patterns have some 20.
WAYS_MAX = 4096
# A bounded repeat beyond this is as good as a run.
_SHORT_REPEAT = 16

_OPENING: Final = re.compile(r"\((?:\?(?:[im-]*:|[im-]+\)|>|<?[=!]|<[A-Za-z_]\w*>))?")
_COUNT: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")
_BRACED: Final = re.compile(r"\\[pPxo]\{[^{}]*\}")
_SIMPLE: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Refused(Exception):
    """What is wrong with the pattern, as a verb phrase."""


@dataclass(slots=True)
class _Part:
    """A piece of a branch. runs: repeats of any length in it. ways: it may match, runs not counted. varies: it has a
    repeat of no fixed count. chooses: it has branches. may_fail: it must match something, or look at what is there."""

    runs: int = 0
    ways: int = 1
    varies: bool = False
    chooses: bool = False
    may_fail: bool = True


@dataclass(slots=True)
class _Group:
    """A group being read: its finished branches together, and the one it is at."""

    total: _Part = field(default_factory=lambda: _Part(ways=0))
    branch: _Part = field(default_factory=_Part)

    def take(self, part: _Part) -> None:
        """Append to the branch."""
        branch = self.branch
        if branch.runs >= RUNS_MAX and part.may_fail and not part.runs:
            raise _Refused(f"goes on behind {RUNS_MAX} repeats of any length, which are tried in every way before")
        branch.runs += part.runs
        branch.ways *= part.ways
        branch.varies |= part.varies
        branch.chooses |= part.chooses
        if branch.runs > RUNS_MAX:
            raise _Refused(f"has more than {RUNS_MAX} repeats of any length in a row")
        if branch.ways > WAYS_MAX:
            raise _Refused(f"has more than {WAYS_MAX} ways to match")

    def end_branch(self) -> None:
        total, branch = self.total, self.branch
        total.runs = max(total.runs, branch.runs)
        total.ways += branch.ways
        total.varies |= branch.varies
        total.chooses |= branch.chooses
        self.branch = _Part()
        if total.ways > WAYS_MAX:
            raise _Refused(f"has more than {WAYS_MAX} ways to match")


def backtracking_complaint(pattern: str) -> str:
    """Why `pattern` may take too long, as a verb phrase; empty where it may not."""
    try:
        _read(pattern)
    except _Refused as refused:
        return str(refused)
    return ""


def _read(pattern: str) -> None:
    groups = [_Group()]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "(":
            at = _open(pattern, at, groups)
            continue
        if character == "|":
            groups[-1].end_branch()
            groups[-1].total.chooses = True
            at += 1
            continue
        if character == ")":
            if len(groups) == 1:
                return  # unbalanced: the library says so
            group = groups.pop()
            group.end_branch()
            part, at = group.total, at + 1
        else:
            part, at = _Part(), _end_of_item(pattern, at)
        part, at = _repeated(pattern, at, part)
        groups[-1].take(part)
    groups[0].end_branch()


def _open(pattern: str, at: int, groups: list[_Group]) -> int:
    """Behind the opening of a group."""
    opening = _OPENING.match(pattern, at)
    assert opening is not None, "only asked at a parenthesis"
    if opening[0] == "(" and pattern[at + 1 : at + 2] in ("?", "*"):
        raise _Refused(f"has a group {pattern[at : at + 4]!r}, whose cost is not known")
    if not opening[0].endswith(")"):  # flags for what follows are no group
        groups.append(_Group())
    return opening.end()


def _end_of_item(pattern: str, at: int) -> int:
    """Behind one character, escape or class."""
    if pattern[at] == "\\":
        following = pattern[at + 1 : at + 2]
        if following.isdigit() and following != "0":
            raise _Refused("refers back to a part of the text")
        if following in ("k", "g", "X", "K"):
            raise _Refused(f"uses \\{following}, whose cost is not known")
        braced = _BRACED.match(pattern, at)
        return braced.end() if braced else at + 2
    return _end_of_class(pattern, at) if pattern[at] == "[" else at + 1


def _end_of_class(pattern: str, at: int) -> int:
    depth = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 2
            continue
        if character == "[":
            if pattern[at + 1 : at + 2] == "]" or pattern[at + 1 : at + 3] == "^]":
                raise _Refused("has a class that begins with its own end")
            depth += 1
        elif character == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return at


def _repeated(pattern: str, at: int, part: _Part) -> tuple[_Part, int]:
    """The part under the quantifier at `at`, if there is one, and the place behind it."""
    found = _quantifier(pattern, at)
    if found is None:
        return part, at
    low, high, at = found
    if _quantifier(pattern, at) is not None:
        raise _Refused("repeats a repeat")
    is_many = high is None or high > 1
    if is_many and (part.varies or part.chooses or part.ways > 1):
        raise _Refused("repeats a part that itself repeats or chooses")
    is_run = high is None or high > _SHORT_REPEAT
    return _Part(
        runs=1 if is_run else part.runs,
        ways=part.ways if is_run or high is None else part.ways + high - low,
        varies=part.varies or low != high,
        chooses=part.chooses,
        may_fail=low > 0,
    ), at


def _quantifier(pattern: str, at: int) -> tuple[int, int | None, int] | None:
    """(least, most, place behind); most is None where there is none."""
    character = pattern[at : at + 1]
    if character in _SIMPLE and character:
        low, high = _SIMPLE[character]
        lazy_or_possessive = pattern[at + 1 : at + 2] in ("?", "+") and bool(pattern[at + 1 : at + 2])
        return low, high, at + 1 + lazy_or_possessive
    count = _COUNT.match(pattern, at)
    if count is None or not (count[1] or count[3]):
        return None
    least = int(count[1][:9] or 0)
    most = (int(count[3][:9]) if count[3] else None) if count[2] else least
    is_lazy = pattern[count.end() : count.end() + 1] == "?"
    return (0 if is_lazy and not count[2] else least), most, count.end() + is_lazy
