"""`build-provenance.json`: how a package came to be, and what else is in it.

Owns its form, its command line, and reading one of unknown origin. Must not compute anything of a package. Nothing of
the machine or the hour is in it: the same inputs and tools give the same text.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec

from calserve import __version__
from calserve.package.checksums import file_sha256, list_files
from calserve.package.decode import MAX_TEXT_BYTES, Undecodable, decode_json
from calserve.package.fault import PackageError
from calserve.package.manifest import Record, Sha256
from calserve.package.pack.agreement import Agreement
from calserve.package.pack.convert import COMPRESSION
from calserve.package.pack.describe import PACKAGE_FILES, write_json
from calserve.package.pack.options import PackOptions
from calserve.package.pack.source import COMMON_TOOLS, Kind, Source

Words = Annotated[str, msgspec.Meta(max_length=4096)]
Few = msgspec.Meta(max_length=4096)
# In place of the directory that was made, which says nothing of what is in it.
ANY_TARGET = "DIR"

T = TypeVar("T")


class SourceRecord(Record, frozen=True):
    """name: of the file or directory, without the way to it, or hf:ORG/NAME. sha256: of the file; of a directory, of
    the sorted `sha256  name` lines of `files`, those that were read. quantization: the types of its weights."""

    kind: Kind
    name: Words
    sha256: Sha256
    files: Annotated[dict[Words, Sha256], Few]
    architecture: Words
    quantization: Words
    license: Words


class OptionsRecord(Record, frozen=True):
    """As `calserve pack` takes them, each settled. alias: the name the model is served under."""

    profiles: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=64)]
    context: int
    weights: Literal["int8", "int4", "fp16", "given"]
    numerics: Literal["fast", "exact"]
    reference: Literal["auto", "transformers"]
    alias: Words


class Provenance(Record, frozen=True):
    """quantization: what NNCF was asked for; empty where it was not. tools: version of each that decides what comes
    out. command: rebuilds the package. agreement: the figures measured. outputs: sha256 of every other file."""

    source: SourceRecord
    options: OptionsRecord
    quantization: dict[str, str | bool | int | float]
    tools: Annotated[dict[Words, Words], Few]
    command: Annotated[tuple[Words, ...], Few]
    agreement: dict[str, int | float]
    outputs: Annotated[dict[Words, Sha256], Few]


def write_provenance(source: Source, root: Path, alias: str, options: PackOptions, figures: Agreement) -> None:
    """Write it, last of the files that it names."""
    digest, files = source.digest()
    settled = OptionsRecord(
        profiles=options.profiles,
        context=options.context,
        weights=cast("Literal['int8', 'int4', 'fp16', 'given']", options.weights),
        numerics="exact" if options.numerics == "exact" else "fast",
        reference="transformers" if options.reference == "transformers" else "auto",
        alias=alias,
    )
    record = Provenance(
        source=SourceRecord(
            source.kind, source.name, digest, files, source.architecture, source.quantization, source.license
        ),
        options=settled,
        quantization=dict(COMPRESSION.get(options.weights, {})),
        tools=tool_versions((*COMMON_TOOLS, *source.tools)),
        command=command_of(source.name, settled),
        agreement=asdict(figures),
        outputs={name: file_sha256(root / name) for name in list_files(root)},
    )
    write_json(root / PACKAGE_FILES["provenance"], record)


def other_tools(recorded: dict[str, str], is_allowed: bool) -> tuple[str, ...]:
    """`name recorded, here other` of each version that differs; PackageError for any unless they are allowed."""
    here = tool_versions(tuple(recorded))
    tools = tuple(f"{name[:80]} {was[:40]}, here {here[name]}" for name, was in recorded.items() if here[name] != was)
    if tools and not is_allowed:
        raise PackageError(
            "replay_tools",
            f"The package was made with other tools ({'; '.join(tools)}); install those, or add --other-tools to see "
            "which files come out differently.",
        )
    return tools


def differing_outputs(recorded: dict[str, str], rebuilt: dict[str, str]) -> tuple[str, ...]:
    """Names of the files that are not the recorded ones."""
    return tuple(name for name in sorted(recorded.keys() | rebuilt.keys()) if recorded.get(name) != rebuilt.get(name))


def tool_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Version of each installed distribution, our own first; "none" for one that is not there."""
    found = {"calserve": __version__}
    for name in names:
        if name == "calserve":
            continue
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def command_of(source: str, options: OptionsRecord) -> tuple[str, ...]:
    """The command line with every option written out, in one order."""
    flags = {
        "--profiles": ",".join(map(str, options.profiles)),
        "--context": str(options.context),
        "--weights": options.weights,
        "--numerics": options.numerics,
        "--reference": options.reference,
        "--alias": options.alias,
    }
    return ("calserve", "pack", source, "-o", ANY_TARGET, *(part for pair in flags.items() for part in pair))


def read_provenance(path: Path) -> Provenance:
    """The record at `path`, or of the package at `path`. Raises PackageError."""
    return read_record(path, Provenance)


def is_sim_record(path: Path) -> bool:
    """Whether it is of a package made for the simulated board. Raises PackageError where it is no JSON."""
    options = _decoded(*_read(path), _Outline).options
    return isinstance(options, dict) and options.get("target") == "sim"


def read_record(path: Path, kind: type[T]) -> T:
    """The record at `path`, or of the package at `path`, as a `kind`.

    Raises PackageError: none, one of a combined package, or one that an older version wrote.
    """
    file, data = _read(path)
    outline = _decoded(file, data, _Outline)
    if outline.combined is not None:
        raise PackageError(
            "replay_combined",
            f"{file} is the record of a combined package: replay the record of each of its two parents, and combine "
            "what comes out with `calserve combine`.",
        )
    is_sim = isinstance(outline.options, dict) and outline.options.get("target") == "sim"
    is_older = isinstance(outline.source, dict) and "kind" not in outline.source
    if is_sim:
        is_older = outline.outputs is None
    if is_older:
        raise PackageError(
            "provenance",
            f"{file} was written by an older version of calserve, whose records cannot be replayed; pack the model "
            "anew instead.",
        )
    return _decoded(file, data, kind)


class _Outline(msgspec.Struct, frozen=True):
    """What tells one form of record from another."""

    source: Any = None
    options: Any = None
    outputs: Any = None
    combined: Any = None


def _read(path: Path) -> tuple[Path, bytes]:
    file = path / PACKAGE_FILES["provenance"] if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise PackageError("provenance", f"{file} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_TEXT_BYTES:
        raise PackageError("provenance", f"{file} is larger than {MAX_TEXT_BYTES} bytes.", MAX_TEXT_BYTES)
    return file, data


def _decoded(file: Path, data: bytes, kind: type[T]) -> T:
    try:
        return decode_json(data, kind)
    except Undecodable as error:
        raise PackageError("provenance", f"{file} is no record of a pack: {error}.") from None
