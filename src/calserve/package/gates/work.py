"""What is known of a package while it goes through the gates.

Owns the facts that one gate leaves for the next: files, decoded parts, contracts. Must not judge. Life of the main
object: a `Work` is made with a path, filled by gates A and B, read by the others, and holds no open file.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calserve.package.manifest import Goldens, Manifest
from calserve.package.sealed import Sealed
from calserve.package.tree import PackageTree
from calserve.progress import Progress, SilentProgress
from calserve.runtime.contract import GraphContract


class FileTooLarge(Exception):
    """A file of the package is larger than its role allows."""


class FileChanged(Exception):
    """A file of the package is another one than was hashed."""


@dataclass(frozen=True, slots=True)
class PackageFiles:
    """The files of a package that passed gate A.

    root: where they are read. digest: sha256 of `checksums.sha256`. listed: sha256 by name, as listed. sizes: bytes by
    name. kept: bytes of the small ones as they were hashed. is_hashed: whether contents were held against the list.
    """

    root: Path
    digest: str
    listed: Mapping[str, str]
    sizes: Mapping[str, int]
    kept: Mapping[str, bytes] = field(default_factory=dict)
    is_hashed: bool = True

    def read(self, name: str, limit: int) -> bytes:
        """Bytes of `name`: those that were hashed, where contents were held against the list.

        Raises FileTooLarge beyond `limit` bytes, FileChanged, OSError.
        """
        data = self.kept.get(name)
        if data is None:
            data = read_regular(self.root / name, limit + 1)
            if self.is_hashed and len(data) <= limit and hashlib.sha256(data).hexdigest() != self.listed[name]:
                raise FileChanged
        if len(data) > limit:
            raise FileTooLarge
        return data


def read_regular(path: Path, most: int) -> bytes:
    """Up to `most` bytes of a regular file; a pipe put in its place does not hold us. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(None, "it is no regular file any more", str(path))
        return file.read(most)


@dataclass(slots=True)
class Work:
    """path: as the user named it. is_hashed: whether gate A reads contents. progress: where that is shown. sealed: a
    copy that cannot change, to be read instead of the path.

    files: of gate A. manifest, goldens, tree: of gate B. contracts: by model and graph, of gate C.
    """

    path: Path
    is_hashed: bool = True
    progress: Progress = field(default_factory=SilentProgress)
    sealed: Sealed | None = None
    files: PackageFiles | None = None
    manifest: Manifest | None = None
    goldens: dict[str, Goldens] = field(default_factory=dict)
    tree: PackageTree | None = None
    contracts: dict[tuple[str, str], GraphContract] = field(default_factory=dict)
    bytes_hashed: int = 0

    def checked_files(self) -> PackageFiles:
        assert self.files is not None, "gate A has not passed"
        return self.files

    def checked_tree(self) -> PackageTree:
        assert self.tree is not None, "gate B has not passed"
        return self.tree
