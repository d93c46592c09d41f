"""Where a package appears: a sibling directory that becomes the target in one rename, or vanishes.

Owns the rule that nothing half made has the target's name, and the checks of the place. Must not know what is written
there. Life of the main object: `.NAME.packing-*` is filled by the caller, listed, opened as a check, and renamed; the
checksums are written last, so that even one left by a killed process opens as no package.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calserve.package.checksums import write_checksums
from calserve.package.fault import PackageError
from calserve.package.manifest import MANIFEST
from calserve.package.reader import open_models


def check_room(target: Path, needed: int) -> None:
    """Raise PackageError unless `needed` bytes are free where `target` will be."""
    folder = target.absolute().parent
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PackageError(
            "disk_full",
            f"Packing needs {needed // 10**6} MB in {folder}, where {free // 10**6} MB are free.",
            needed,
            free,
        )


def _clear_left_behind(target: Path) -> None:
    """What a pack of this target that was killed left; one whose process still runs is somebody's work."""
    for left in target.parent.glob(f".{target.name}.packing-*"):
        owner = re.fullmatch(r".*\.packing-(\d+)-.*", left.name)
        if owner is not None and not Path(f"/proc/{owner.group(1)}").exists():
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def new_directory(target: Path, force: bool) -> Iterator[Path]:
    """A directory beside `target` that becomes it at the end, or vanishes.

    Raises PackageError: the target is there (unless `force` and it is a package), cannot be written, or the disk
    is full.
    """
    if target.is_symlink() or target.exists():
        if not force:
            raise PackageError("target_exists", f"{target} exists already; --force replaces it.")
        if target.is_symlink() or not (target / MANIFEST).is_file():
            raise PackageError("target_foreign", f"{target} is not a package, so --force does not replace it.")
    root = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_left_behind(target)
        root = Path(tempfile.mkdtemp(prefix=f".{target.name}.packing-{os.getpid()}-", dir=target.parent))
        root.chmod(0o755)
        yield root
        write_checksums(root)
        open_models(root)
        _put_in_place(root, target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PackageError("disk_full", f"There is no room left on the disk of {target.parent}.") from None
        raise PackageError("target_unwritable", f"{target} cannot be written: {error.strerror}.") from None
    finally:
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)


def _put_in_place(root: Path, target: Path) -> None:
    if not target.exists():
        root.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.replaced-", dir=target.parent))
    target.rename(old / target.name)
    try:
        root.rename(target)
    except OSError:
        (old / target.name).rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
