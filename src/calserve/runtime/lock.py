"""The exclusive lock of a board: one process at a time, released by the kernel when that process ends.

Owns: one lock file per board in a directory of the user's own, and the sentence a second opener is told. Must
not know: what a board is. Life of a BoardLock: `acquire` opens and locks the file and writes the holder's
process id into it for people to read; `release` or the end of the process, however it ends, gives it back.
The file itself stays: removing it would let two processes lock two different files under one name.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from pathlib import Path

RUNTIME_DIR_VARIABLE = "CALSERVE_RUNTIME_DIR"


class BoardBusy(Exception):
    """Another process holds the board, or the lock cannot be had. The message is one clear sentence."""


class BoardLock:
    """Held from `acquire` to `release`. Invariants: one holder per board name and runtime directory."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, board: str, directory: Path | None = None) -> BoardLock:
        """Lock `board`; never waits. Raises BoardBusy naming the holder."""
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", board)
        path = _own_directory(directory or runtime_directory()) / f"{name}.lock"
        try:
            # Close-on-exec (Python's default): a child process must not keep the board after we are gone.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise BoardBusy(f"The lock of board '{board}' cannot be opened: {path}: {error.strerror}.") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 64).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise BoardBusy(f"Board '{board}' is already open in process {holder}; stop that process first.") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(path, descriptor)

    def release(self) -> None:
        """Give the board back; harmless when already released."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def runtime_directory() -> Path:
    """`$CALSERVE_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/calserve`, else a per-user temporary directory."""
    if own := os.environ.get(RUNTIME_DIR_VARIABLE):
        return Path(own)
    if session := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(session) / "calserve"
    return Path(tempfile.gettempdir()) / f"calserve-{os.getuid()}"


def _own_directory(path: Path) -> Path:
    """`path`, made if missing; refused when another user could put files into it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.lstat()
    except OSError as error:
        raise BoardBusy(f"The runtime directory {path} cannot be used: {error.strerror}.") from None
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise BoardBusy(f"The runtime directory {path} is not a directory of this user.")
    return path
