"""`checksums.sha256`: every file of a package, by content.

Owns writing the list and holding a directory against it: nothing missing, nothing more, nothing altered, no links
and nothing outside the root. Must not know what the files mean. The package's hash is the sha256 of the list.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from calserve.package.fault import PackageError
from calserve.package.manifest import CHECKSUMS, SIGNATURE

MAX_FILES = 4096
MAX_LIST_BYTES = 1 << 20
_LINE = re.compile(r"([0-9a-f]{64})  (\S[^\r\n]*)")
_HASH_THREADS = 4  # hashlib lets the interpreter go while it hashes


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_inside_name(name: str) -> bool:
    """Whether `name` is a plain relative POSIX path: no `..`, no root, no backslash, no NUL, already normal."""
    path = PurePosixPath(name)
    return (
        bool(name)
        and "\\" not in name
        and all(ord(c) >= 32 for c in name)
        and not path.is_absolute()
        and ".." not in path.parts
        and str(path) == name
        and ":" not in path.parts[0]
    )


def list_files(root: Path) -> list[str]:
    """Relative POSIX names of all files under `root`, sorted.

    Raises PackageError on a link, a device, a socket or a pipe, and on more than MAX_FILES entries.
    """
    names: list[str] = []
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                name = Path(entry.path).relative_to(root).as_posix()
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    pending.append(Path(entry.path))
                elif stat.S_ISREG(mode):
                    names.append(name)
                else:
                    kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
                    raise PackageError("file_kind", f"{root}: {name} is {kind}, which a package may not hold.")
                if len(names) > MAX_FILES or len(pending) > MAX_FILES:
                    raise PackageError(
                        "file_count", f"{root} holds more than {MAX_FILES} files.", MAX_FILES, len(names)
                    )
    return sorted(names)


def write_checksums(root: Path) -> None:
    """List every file under `root` (but the list itself and a signature) with its sha256, sorted by name."""
    names = [name for name in list_files(root) if name not in (CHECKSUMS, SIGNATURE)]
    text = "".join(f"{digest}  {name}\n" for name, digest in _digests(root, names).items())
    (root / CHECKSUMS).write_text(text, encoding="utf-8")


def verify_checksums(root: Path) -> str:
    """Check `root` against its list and return the package hash.

    Raises PackageError naming the first file that is missing, surplus, altered, linked or outside.
    """
    listed_bytes = _read_list(root)
    listed = _parse_list(root, listed_bytes)
    present = {name for name in list_files(root) if name not in (CHECKSUMS, SIGNATURE)}
    for name in sorted(listed.keys() - present):
        raise PackageError("file_missing", f"{root}: {name} is listed in {CHECKSUMS} but is not there.")
    for name in sorted(present - listed.keys()):
        raise PackageError("file_surplus", f"{root}: {name} is not listed in {CHECKSUMS}.")
    for name, digest in _digests(root, listed).items():
        if digest != listed[name]:
            raise PackageError(
                "file_altered",
                f"{root}: {name} does not match its checksum; the package is damaged or was changed.",
                listed[name],
                digest,
            )
    return hashlib.sha256(listed_bytes).hexdigest()


def _read_list(root: Path) -> bytes:
    path = root / CHECKSUMS
    if path.is_symlink() or not path.is_file():
        raise PackageError("checksums_missing", f"{root} is not a package: it has no {CHECKSUMS}.")
    with path.open("rb") as file:
        data = file.read(MAX_LIST_BYTES + 1)
    if len(data) > MAX_LIST_BYTES:
        raise PackageError("checksums_size", f"{path} is larger than {MAX_LIST_BYTES} bytes.", MAX_LIST_BYTES)
    return data


def _parse_list(root: Path, data: bytes) -> dict[str, str]:
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise PackageError("checksums_form", f"{root / CHECKSUMS} is not UTF-8 text.") from None
    listed: dict[str, str] = {}
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise PackageError("checksums_form", f"{root / CHECKSUMS}, line {number}: not `sha256  name`.")
        digest, name = match.groups()
        if not is_inside_name(name):
            raise PackageError("file_outside", f"{root}: {name!r} in {CHECKSUMS} is not inside the package.")
        if name in listed:
            raise PackageError("file_repeated", f"{root}: {name} is listed twice in {CHECKSUMS}.")
        listed[name] = digest
    return listed


def _digests(root: Path, names: Iterable[str]) -> dict[str, str]:
    ordered = sorted(names)
    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        return dict(zip(ordered, pool.map(lambda name: file_sha256(root / name), ordered), strict=True))
