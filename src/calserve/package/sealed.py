"""A package as it was at one moment: copies of its files that nobody can change any more.

Owns the way from a directory that others may write to bytes that stay as they were checked, so that what was verified
is what is opened, by us and by a board's own library alike. Must not know what the files mean. Life of the main object:
a Sealed is made before anything is read, every later step reads its view, and it goes with the last holder.

Each file is copied once into anonymous memory and sealed against writing (memfd, Linux); the view is a private folder
of names that lead there. Elsewhere the view is a private copy.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from calserve.package.checksums import list_files
from calserve.package.fault import PackageError
from calserve.package.manifest import SIGNATURE

MAX_SIGNATURE_BYTES = 4 << 20  # a line per file
_CHUNK = 1 << 20
_THREADS = 4  # hashing and copying let the interpreter go
VIEW = "package"
_PREFIX = "calserve-sealed-"
_RESERVE_BYTES = 256 << 20  # of free memory that a copy must leave

Told = Callable[[int], None]  # bytes done


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Sealed:
    """origin: the directory it was, for people. view: the folder to read from; it holds everything but a signature.
    digests: sha256 by relative name, of the sealed bytes. signature: the sealed signature, None where there is none.
    """

    origin: Path
    view: Path
    digests: Mapping[str, str]
    signature: Path | None = None


def seal(root: Path, told: Told = lambda _: None) -> Sealed:
    """The package at `root`, copied and closed to change.

    Raises PackageError: a link or a special file, too many files, a file that goes or changes its kind meanwhile, more
    than fits in memory.
    """
    names = list_files(root)
    total = 0
    for name in names:
        try:
            size = os.stat(root / name, follow_symlinks=False).st_size
        except OSError as error:
            raise _unreadable(root, name, error) from None
        if name == SIGNATURE and size > MAX_SIGNATURE_BYTES:
            raise _too_large(root, size)
        total += size
    _check_room(root, total)
    _clear_left_behind()
    base = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))  # mode 0700
    held: list[int] = []
    try:
        (base / VIEW).mkdir()
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                found = list(pool.map(lambda name: _copy(root, top, name, base, held, told), names))
        finally:
            os.close(top)
    except BaseException:
        _remove(base, held)
        raise
    digests = {name: digest for name, digest in zip(names, found, strict=True) if name != SIGNATURE}
    signature = base / SIGNATURE if SIGNATURE in names else None
    sealed = Sealed(root, base / VIEW, MappingProxyType(digests), signature)
    weakref.finalize(sealed, _remove, base, held)
    return sealed


def _copy(root: Path, top: int, name: str, base: Path, held: list[int], told: Told) -> str:
    """One file into memory, or into the private copy; its sha256. The descriptor that holds it goes to `held`."""
    place = base / name if name == SIGNATURE else base / VIEW / name
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        source = _open_inside(top, name)
    except OSError as error:
        raise _unreadable(root, name, error) from None
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise PackageError("A08", f"{root}: {name} is not a regular file, which a package may not hold.")
        if name == SIGNATURE and (size := os.fstat(source).st_size) > MAX_SIGNATURE_BYTES:  # it grew meanwhile
            raise _too_large(root, size)
        if not hasattr(os, "memfd_create"):
            return _pour(source, os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), told)
        target = os.memfd_create(name.replace("/", "_")[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        held.append(target)
        digest = _pour(source, os.dup(target), told)
        _close_to_change(target)
        place.symlink_to(f"/proc/self/fd/{target}")
        return digest
    except OSError as error:
        raise _unreadable(root, name, error) from None
    finally:
        os.close(source)


def _open_inside(top: int, name: str) -> int:
    """`name` under the directory `top` and over no link, whoever moves what meanwhile. Never waits for a pipe."""
    *folders, last = name.split("/")
    at = os.dup(top)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)


def _pour(source: int, target: int, told: Told) -> str:
    """Copy to the end of `source`, hash what was written (a byte is read once), and close `target`."""
    digest = hashlib.sha256()
    try:
        while data := os.read(source, _CHUNK):
            digest.update(data)
            left = memoryview(data)
            while left:
                left = left[os.write(target, left) :]
            told(len(data))
    finally:
        os.close(target)
    return digest.hexdigest()


def _close_to_change(descriptor: int) -> None:
    import fcntl

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def _check_room(root: Path, total: int) -> None:
    """A file may claim any size without holding it, so the sum is held against free memory before a byte is read."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    if free is not None and total > max(0, free - _RESERVE_BYTES):
        raise PackageError(
            "size",
            f"{root} holds {total // 10**6} MB of files, and there are {free // 10**6} MB of memory for them.",
            free,
            total,
        )


def _too_large(root: Path, size: int) -> PackageError:
    """A signature is beside the list of checksums: nothing else says how large it may be."""
    return PackageError(
        "size", f"{root}: its signature is larger than {MAX_SIGNATURE_BYTES} bytes.", MAX_SIGNATURE_BYTES, size
    )


def _unreadable(root: Path, name: str, error: OSError) -> PackageError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return PackageError("A08", f"{root}: {name} is reached over a link, which a package may not hold.")
    if error.errno in (errno.ENOMEM, errno.ENOSPC):
        return PackageError("size", f"{root}: there is no memory left for {name}.")
    return PackageError("A02", f"{root}: {name} cannot be read: {error.strerror}.")


def _clear_left_behind() -> None:
    """Folders of processes that were killed; their memory went with them, and the names in it lead nowhere."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and Path("/proc/self").exists() and not Path("/proc", owner).exists():
            shutil.rmtree(left, ignore_errors=True)


def _remove(base: Path, held: list[int]) -> None:
    for descriptor in held:
        os.close(descriptor)
    held.clear()
    shutil.rmtree(base, ignore_errors=True)
