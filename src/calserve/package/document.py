"""`docs/package.md`, written from the schema and the rules themselves, so that page and code cannot drift apart.

Owns the layout of the page. Must not hold a fact of its own: a field's meaning is its struct's docstring, its bounds
are its annotation, a rule's sentence is the rule's. `python -m calserve.package.document > docs/package.md` writes it.
"""

from __future__ import annotations

import inspect as introspection
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from calserve.package import manifest
from calserve.package.checksums import MAX_FILES, MAX_LIST_BYTES
from calserve.package.decode import MAX_DEPTH, MAX_TEXT_BYTES
from calserve.package.gates import verdict
from calserve.package.gates.rules import GATES, RULES
from calserve.package.manifest import CHECKSUMS, MANIFEST, MODEL_ROLES, PACKAGE_ROLES, SCHEMA, SIGNATURE
from calserve.runtime.targets import TARGETS

_PARTS: Final[tuple[tuple[str, tuple[type[Any], ...]], ...]] = (
    (
        MANIFEST,
        (
            manifest.Manifest,
            manifest.ModelEntry,
            manifest.KvEntry,
            manifest.GraphEntry,
            manifest.BatchEntry,
            manifest.TensorEntry,
        ),
    ),
    ("memory.json", (manifest.MemoryMap, manifest.ModelMemory, manifest.ChipReserve, manifest.Section)),
    ("goldens.json", (manifest.Goldens, manifest.GoldenEntry)),
    ("compatibility.json", (manifest.Compatibility,)),
)
_VERDICT: Final = (verdict.Verdict, verdict.ModelRecord, verdict.GateRecord, verdict.FindingRecord)


def package_document() -> str:
    """The whole page, Markdown."""
    lines = [*_introduction()]
    for name, kinds in _PARTS:
        lines += ["", f"## `{name}`"]
        for kind in kinds:
            lines += _struct(kind)
    lines += _rules()
    codes = ", ".join(f"{answer} {code}" for answer, code in verdict.EXIT_CODES.items())
    lines += ["", f"## The verdict: `{verdict.SCHEMA}`", ""]
    lines += ["What `calserve validate PATH [--fast | --full] [--strict] --json FILE` writes; `-` is standard output."]
    lines += [f"Exit codes: {codes}; 1 where it could not be asked, such as for a board that is in use."]
    for kind in _VERDICT:
        lines += _struct(kind)
    return "\n".join(lines) + "\n"


def _introduction() -> Iterable[str]:
    yield f"# Packages: `{SCHEMA}`"
    yield ""
    yield "Written by `python -m calserve.package.document` from the schema and rules in code; a test holds it current."
    yield ""
    yield (
        "A package is a directory. Archives are not read, and nothing in a package is ever executed: descriptions are "
        "plain YAML and JSON, the chat template runs in a sandbox. Unknown, missing and repeated fields are errors. "
        "Names are only ever compared whole."
    )
    yield ""
    yield "| file | what it is |"
    yield "| --- | --- |"
    yield f"| `{MANIFEST}` | schema, target, models, and which file fills which role |"
    yield f"| `{CHECKSUMS}` | every file by content, as `sha256sum` prints it; its own sha256 is the package's hash |"
    yield f"| `{SIGNATURE}` | optional; it and the list itself are the only files not listed |"
    for role in PACKAGE_ROLES:
        yield f"| the role `{role}` | once in a package |"
    for role in MODEL_ROLES:
        yield f"| the role `{role}` | once for each model |"
    compiled = " and ".join(f"`{name}`" for name, traits in TARGETS.items() if traits.is_compiled)
    yield f"| the roles `graph:NAME`, `weights:NAME` | for each graph, where something is compiled ({compiled}) |"
    yield ""
    yield (
        f"At most {MAX_FILES} files and directories, a list of at most {MAX_LIST_BYTES >> 20} MiB, descriptions of at "
        f"most {MAX_TEXT_BYTES >> 20} MiB and {MAX_DEPTH} levels. YAML has no tags, anchors or aliases; numbers are "
        "decimal."
    )


def _struct(kind: type[Any]) -> list[str]:
    """A table of the fields of one struct."""
    summary, meanings = field_meanings(kind)
    lines = ["", f"### {kind.__name__}", "", summary, "", "| field | type | meaning |", "| --- | --- | --- |"]
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        lines.append(f"| `{field.name}` | {type_text(field.type)} | {_cell(meanings.get(field.name, ''))} |")
    return lines


def field_meanings(kind: type[Any]) -> tuple[str, dict[str, str]]:
    """A struct's summary, and each field's meaning, from a docstring in the form `name: text. other, more: text.`"""
    names = {field.name for field in msgspec.structs.fields(kind)}
    text = " ".join((introspection.getdoc(kind) or "").split())
    word = "|".join(sorted(names, key=len, reverse=True))
    heads = list(re.finditer(rf"(?:^|(?<=[.;] ))((?:(?:{word})(?:, )?)+): ", text))
    meanings: dict[str, str] = {}
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        for name in head[1].split(", "):
            meanings[name] = text[head.end() : end].strip().rstrip(";.")
    summary = text[: heads[0].start()].strip() if heads else text
    return summary, meanings


def type_text(kind: Any) -> str:
    """A msgspec type as people write it, with its bounds."""
    info = msgspec.inspect
    for simple, words in _SIMPLE.items():
        if isinstance(kind, simple):
            return words(kind)
    if isinstance(kind, info.LiteralType):
        return ", ".join(f"`{value}`" for value in kind.values)
    if isinstance(kind, info.StructType):
        return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
    if isinstance(kind, info.VarTupleType | info.ListType):
        return f"list of {type_text(kind.item_type)}{_length(kind)}"
    if isinstance(kind, info.DictType):
        return f"map of {type_text(kind.key_type)} to {type_text(kind.value_type)}{_length(kind)}"
    if isinstance(kind, info.UnionType):
        return " or ".join(type_text(each) for each in kind.types)
    raise TypeError(f"a field of type {kind!r} has no words yet")


def _range(kind: Any) -> str:
    low = kind.ge if kind.ge is not None else kind.gt
    high = kind.le if kind.le is not None else None if kind.lt is None else kind.lt - 1
    if low is None and high is None:
        return ""
    return f" {_number(low)} to {_number(high)}"


def _number(value: Any) -> str:
    if isinstance(value, int) and value >= 1 << 20 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    if isinstance(value, int) and value >= 1 << 20 and (value + 1) & value == 0:
        return f"2^{value.bit_length()} - 1"
    return str(value)


def _text_type(kind: Any) -> str:
    if kind.pattern == manifest.NAME_PATTERN:
        return "name (letters, digits, `._/:-`, up to 128)"
    if kind.pattern is not None:
        return "sha256, 64 hexadecimal digits"
    return f"text{_length(kind)}"


def _length(kind: Any) -> str:
    low, high = kind.min_length, kind.max_length
    if high is None:
        return "" if low is None else f" (at least {low})"
    return f" (up to {high})" if low is None else f" ({low} to {high})"


_SIMPLE: Final[dict[type[Any], Callable[[Any], str]]] = {
    msgspec.inspect.IntType: lambda kind: f"integer{_range(kind)}",
    msgspec.inspect.FloatType: lambda kind: f"number{_range(kind)}",
    msgspec.inspect.StrType: _text_type,
    msgspec.inspect.BoolType: lambda _: "boolean",
    msgspec.inspect.NoneType: lambda _: "null",
}


def _rules() -> list[str]:
    lines = ["", "## Rules", "", "Gates run in order, and one that fails stops those behind it.", ""]
    lines += ["`fail` refuses the package, also where it is opened to be served; `warning` does with `--strict`.", ""]
    lines += ["| gate | looks at |", "| --- | --- |", *(f"| {gate} | {title} |" for gate, title in GATES.items()), ""]
    lines += ["| rule | what must hold | severity |", "| --- | --- | --- |"]
    for rule in RULES.values():
        board = " (with `--full`)" if rule.needs_board else ""
        lines.append(f"| {rule.id} | {_cell(rule.sentence)} | {rule.severity}{board} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(package_document(), end="")
