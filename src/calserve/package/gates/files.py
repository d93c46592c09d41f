"""Gate A: the directory against its list of checksums.

Owns what may lie in a package and what is hashed. Must not know what the files mean. Nothing is followed, nothing
outside the root is opened, and a package that breaks the gate is not decoded.
"""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

from calserve.package.checksums import (
    MAX_FILES,
    MAX_LIST_BYTES,
    Keep,
    Listing,
    Tree,
    hash_files,
    parse_list,
    scan,
)
from calserve.package.gates.finding import Findings, Place, printable
from calserve.package.gates.work import PackageFiles, Work, read_regular
from calserve.package.manifest import CHECKSUMS, SIGNATURE

# Descriptions, tokenizers and templates stay in memory as they were hashed; graphs and weights never do.
KEPT_SUFFIXES = (".yaml", ".json", ".jinja")
KEPT_BYTES = 160 << 20
_UNLISTED = (CHECKSUMS, SIGNATURE)
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".xz", ".bz2", ".zst", ".7z", ".rar", ".whl", ".gguf", ".safetensors")


def check_files(work: Work, findings: Findings) -> None:
    """Fill `work.files`, unless something here refuses the package."""
    try:
        if not work.path.is_dir():
            _refuse_path(work.path, findings)
            return
        if work.sealed is not None:
            _check_sealed(work, findings)
            return
        _check_directory(work, findings)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        _unreadable(error, findings)


def _refuse_path(path: Path, findings: Findings) -> None:
    if path.is_file() and path.suffix.lower() in _ARCHIVES:
        findings.add("A01", "It is a file, and a package is a directory: archives are not read, unpack it first.")
    elif path.is_file():
        findings.add("A01", "It is a file, and a package is a directory.")
    else:
        findings.add("A01", "There is no such directory.")


def _unreadable(error: OSError | ValueError, findings: Findings) -> None:
    wrong = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    name = Path(str(error.filename)).name if isinstance(error, OSError) and error.filename else "It"
    findings.add("A02", f"{name} cannot be read: {wrong}.", Place(file="" if name == "It" else name))


def _check_directory(work: Work, findings: Findings) -> None:
    root = work.path.resolve()
    tree = scan(root)
    _check_kinds(tree, findings)
    if findings.has_failed:
        return
    listing, digest = _read_list(root, tree, findings)
    if listing is None:
        return
    present = {name: entry.size for name, entry in tree.files.items() if name not in _UNLISTED}
    _check_names(listing, present, findings)
    _check_modes(tree, findings)
    if findings.has_failed:
        return
    keep = Keep(lambda name: name.endswith(KEPT_SUFFIXES), KEPT_BYTES)
    if work.is_hashed:
        work.bytes_hashed = sum(present.values())
        with work.progress.step(f"Hashing {root.name}", work.bytes_hashed, "B") as step:
            found = hash_files(root, listing.digests, step.advance, keep)
        _check_digests(listing, found, findings)
    if not findings.has_failed:
        work.files = PackageFiles(root, digest, listing.digests, present, keep.kept, work.is_hashed)


def _check_sealed(work: Work, findings: Findings) -> None:
    """As a directory, of which the names, kinds and hashes were taken while it was copied."""
    sealed = work.sealed
    assert sealed is not None
    if CHECKSUMS not in sealed.digests:
        findings.add("A03", f"It has no {CHECKSUMS}, so it is not a package.", Place(file=CHECKSUMS))
        return
    listing, digest = _parse(read_regular(sealed.view / CHECKSUMS, MAX_LIST_BYTES + 1), findings)
    if listing is None:
        return
    found = {name: value for name, value in sealed.digests.items() if name not in _UNLISTED}
    sizes = {name: (sealed.view / name).stat().st_size for name in found}
    _check_names(listing, sizes, findings)
    if not findings.has_failed:
        _check_digests(listing, found, findings)
    if not findings.has_failed:
        work.bytes_hashed = sum(sizes.values())
        # Nothing can change any more, so nothing that is read again is hashed again.
        work.files = PackageFiles(sealed.view, digest, listing.digests, sizes, is_hashed=False)


def _check_kinds(tree: Tree, findings: Findings) -> None:
    for name, kind in sorted(tree.odd.items()):
        rule = "A03" if name == CHECKSUMS else "A08"
        findings.add(rule, f"{name} is {kind}, which a package may not hold.", Place(file=name))
    if tree.is_cut:
        findings.add("A09", f"It holds more than {MAX_FILES} files and directories.", limit=MAX_FILES)


def _check_modes(tree: Tree, findings: Findings) -> None:
    others = stat.S_IWGRP | stat.S_IWOTH
    for name, entry in sorted((*tree.folders.items(), *tree.files.items())):
        if entry.mode & others:
            shown = "The directory itself" if name == "." else name
            mode = f"{stat.S_IMODE(entry.mode):o}"
            findings.add("A13", f"{shown} can be written by others than its owner (mode {mode}).", Place(file=name),
                         given=mode)  # fmt: skip


def _read_list(root: Path, tree: Tree, findings: Findings) -> tuple[Listing | None, str]:
    if CHECKSUMS not in tree.files:
        findings.add("A03", f"It has no {CHECKSUMS}, so it is not a package.", Place(file=CHECKSUMS))
        return None, ""
    return _parse(read_regular(root / CHECKSUMS, MAX_LIST_BYTES + 1), findings)


def _parse(data: bytes, findings: Findings) -> tuple[Listing | None, str]:
    """The list, or None where it cannot be used; and the package's hash."""
    at = Place(file=CHECKSUMS)
    if len(data) > MAX_LIST_BYTES:
        findings.add("A04", f"{CHECKSUMS} is larger than {MAX_LIST_BYTES} bytes.", at, MAX_LIST_BYTES)
        return None, ""
    try:
        listing = parse_list(data.decode("utf-8"))
    except UnicodeDecodeError:
        findings.add("A05", f"{CHECKSUMS} is not UTF-8 text.", at)
        return None, ""
    for number in listing.malformed:
        findings.add("A05", f"{CHECKSUMS}, line {number}: not `sha256  name`.", at)
    for name in listing.outside:
        findings.add("A06", f"{printable(ascii(name))} in {CHECKSUMS} is not inside the package.", at)
    for name in listing.repeated:
        findings.add("A07", f"{name} is listed twice in {CHECKSUMS}.", Place(file=name))
    return (None if findings.has_failed else listing), hashlib.sha256(data).hexdigest()


def _check_names(listing: Listing, present: dict[str, int], findings: Findings) -> None:
    for name in sorted(listing.digests.keys() - present.keys()):
        findings.add("A10", f"{name} is listed in {CHECKSUMS} but is not there.", Place(file=name))
    for name in sorted(present.keys() - listing.digests.keys()):
        findings.add("A11", f"{name} is not listed in {CHECKSUMS}.", Place(file=name))


def _check_digests(listing: Listing, found: dict[str, str], findings: Findings) -> None:
    for name, digest in found.items():
        listed = listing.digests[name]
        if digest != listed:
            sentence = f"{name} does not match its checksum; the package is damaged or was changed."
            findings.add("A12", sentence, Place(file=name), listed, digest)
