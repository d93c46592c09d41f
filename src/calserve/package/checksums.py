"""`checksums.sha256`: every file of a package, by content.

Owns the form of the list, what lies in a directory, and hashing at the speed of the disk. Must not know what the files
mean, nor which rule a difference breaks: that is gate A's. The package's hash is the sha256 of the list.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from calserve.package.fault import PackageError
from calserve.package.manifest import CHECKSUMS, SIGNATURE

MAX_FILES = 4096
MAX_LIST_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20
_LINE = re.compile(r"([0-9a-f]{64})  (\S[^\r\n]*)")
_HASH_THREADS = 4  # hashlib lets the interpreter go while it hashes

Told = Callable[[int], None]  # bytes done


@dataclass(slots=True)
class Entry:
    """A file or directory as the directory tells of it. mode: permission bits with the kind."""

    size: int
    mode: int


@dataclass(slots=True)
class Tree:
    """What lies under a root. files, folders: by relative POSIX name. odd: name -> kind, of what is neither.
    is_cut: there was more than MAX_FILES, and the rest was not looked at."""

    files: dict[str, Entry] = field(default_factory=dict)
    folders: dict[str, Entry] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False


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
        and bool(path.parts)
        and str(path) == name
        and ":" not in path.parts[0]
    )


def scan(root: Path) -> Tree:
    """Everything under `root`, itself under the name ".", without following a link. Raises OSError."""
    tree = Tree()
    status = root.stat()
    tree.folders["."] = Entry(0, status.st_mode)
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                name = Path(entry.path).relative_to(root).as_posix()
                status = entry.stat(follow_symlinks=False)
                mode = status.st_mode
                if stat.S_ISDIR(mode):
                    pending.append(Path(entry.path))
                    tree.folders[name] = Entry(0, mode)
                elif stat.S_ISREG(mode):
                    tree.files[name] = Entry(status.st_size, mode)
                else:
                    tree.odd[name] = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
                if len(tree.files) + len(tree.folders) + len(tree.odd) > MAX_FILES:
                    tree.is_cut = True
                    return tree
    return tree


def list_files(root: Path) -> list[str]:
    """Relative POSIX names of all files under `root`, sorted.

    Raises PackageError on a link, a device, a socket or a pipe, and on more than MAX_FILES entries.
    """
    tree = scan(root)
    for name, kind in sorted(tree.odd.items()):
        raise PackageError("A08", f"{root}: {name} is {kind}, which a package may not hold.")
    if tree.is_cut:
        raise PackageError("A09", f"{root} holds more than {MAX_FILES} files and folders.", MAX_FILES)
    return sorted(tree.files)


def write_checksums(root: Path) -> None:
    """List every file under `root` (but the list itself and a signature) with its sha256, sorted by name."""
    names = [name for name in list_files(root) if name not in (CHECKSUMS, SIGNATURE)]
    text = "".join(f"{digest}  {name}\n" for name, digest in hash_files(root, names).items())
    (root / CHECKSUMS).write_text(text, encoding="utf-8")


@dataclass(slots=True)
class Listing:
    """A list, read. digests: by name. malformed: line numbers that are no `sha256  name`. outside, repeated: names."""

    digests: dict[str, str] = field(default_factory=dict)
    malformed: list[int] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


def parse_list(text: str) -> Listing:
    """The list line by line, each as `sha256sum` prints it."""
    listing = Listing()
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            listing.malformed.append(number)
            continue
        digest, name = match.groups()
        if not is_inside_name(name):
            listing.outside.append(name)
        elif name in listing.digests:
            listing.repeated.append(name)
        else:
            listing.digests[name] = digest
    return listing


@dataclass(slots=True)
class Keep:
    """Which files' bytes stay after hashing, so that what is decoded later is what was hashed.

    wants: by name. budget: bytes in all; a file that no longer fits is not kept, and is read and hashed again.
    """

    wants: Callable[[str], bool]
    budget: int
    kept: dict[str, bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has_room(self, name: str, size: int) -> bool:
        """Take the room of `size` bytes for `name`, if it is wanted and there is so much."""
        if not self.wants(name):
            return False
        with self.lock:
            if size > self.budget:
                return False
            self.budget -= size
        return True


def hash_files(
    root: Path, names: Iterable[str], told: Told = lambda _: None, keep: Keep | None = None
) -> dict[str, str]:
    """sha256 by name, in sorted order, several files at a time. told: bytes done, called by one thread at a time.

    Raises OSError.
    """
    ordered = sorted(names)
    turn = threading.Lock()

    def told_in_turn(amount: int) -> None:
        with turn:
            told(amount)

    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        digests = pool.map(lambda name: _hash_file(root / name, name, told_in_turn, keep), ordered)
        return dict(zip(ordered, digests, strict=True))


def _hash_file(path: Path, name: str, told: Told, keep: Keep | None) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if keep is not None and keep.has_room(name, size):
            data = file.read(size) or b""
            digest.update(data)
            keep.kept[name] = data
            told(len(data))
        buffer = bytearray(CHUNK_BYTES)
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
            told(count)
            if keep is not None and keep.kept.pop(name, None) is not None:
                continue  # it grew while it was read: what was kept is not what was hashed
    return digest.hexdigest()
