"""Where a command is to write, looked at before it works: what took minutes would be lost for want of a place.

Owns: the sentences of a place that cannot be. Must not know: what is written. Nothing is made here: who writes makes
the directories it needs, so a command that is refused leaves nothing behind.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from calserve.cli.refusals import Refusal


def check_file(path: Path | None, flag: str, *read: Path | str | None) -> None:
    """That a file can be put at `path`, and not into a package that is `read`; None is nowhere. Raises Refusal."""
    if path is None:
        return
    check_outside(path, flag, *read)
    kind = _kind(path, flag)
    if str(path) in ("", ".") or kind == stat.S_IFDIR:
        raise Refusal(f"{path} is a directory{_also(path)}; {flag} takes a file.")
    if kind not in (0, stat.S_IFREG):
        raise Refusal(f"{path} is no regular file, and {flag} would take its place.")
    _check_room(path.parent, flag, "put a file there")


def check_directory(path: Path | None, flag: str, *read: Path | str | None) -> None:
    """That files can be put into a directory at `path`, as for a file. Raises Refusal."""
    if path is None:
        return
    check_outside(path, flag, *read)
    if _kind(path, flag) not in (0, stat.S_IFDIR):
        raise Refusal(f"{path} is no directory; {flag} takes one.")
    _check_room(path, flag, "put files there")


def check_outside(path: Path, flag: str, *read: Path | str | None) -> None:
    """A package is whole or nothing: a file more in it would make it another one, or none. Raises Refusal."""
    for package in read:
        try:
            is_directory = package is not None and str(package) != "" and Path(package).is_dir()
            is_inside = is_directory and path.resolve().is_relative_to(Path(str(package)).resolve())
        except (OSError, ValueError, RuntimeError):
            continue  # what cannot be looked at is refused by who reads it
        if is_inside:
            raise Refusal(f"{path} is inside {package}, which is read; {flag} must be somewhere else.")


def _kind(path: Path, flag: str) -> int:
    """0 where there is nothing."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise Refusal(f"{str(path)[:200]}: {error.strerror}, so {flag} cannot be there.") from None
    except ValueError:
        raise Refusal(f"{flag} takes the name of a file, not {str(path)[:60]!r}.") from None


def _check_room(directory: Path, flag: str, purpose: str) -> None:
    """Asked of the file system itself, at the nearest directory that is there: a mode says nothing of a read-only one,
    nor does it stop root."""
    there = next((each for each in (directory, *directory.parents) if os.path.lexists(each)), Path())
    if not there.is_dir():
        raise Refusal(f"{there} is no directory, so {flag} cannot {purpose}.")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise Refusal(f"{there}: {error.strerror}, so {flag} cannot {purpose}.") from None


def _also(path: Path) -> str:
    """What a path cannot tell apart."""
    return ", as an empty name is" if str(path) == "." else ""
