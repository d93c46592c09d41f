"""A sealed package stays what it was, whatever happens to the directory; and nothing leads out of it."""

from __future__ import annotations

import gc
import hashlib
import os
from pathlib import Path

import pytest
from package_rig import write_package

from calserve.package import PackageError, sealed
from calserve.package.sealed import seal


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_seal_gives_every_file_but_the_signature(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    (root / "signature").write_bytes(b"s")
    shown = seal(root)
    names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    assert sorted([*shown.digests, "signature"]) == names
    for name, digest in shown.digests.items():
        assert (shown.view / name).read_bytes() == (root / name).read_bytes()
        assert digest == hashlib.sha256((root / name).read_bytes()).hexdigest()
    assert shown.signature is not None
    assert shown.signature.read_bytes() == b"s"


def test_seal_what_changes_later_changes_nothing(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    shown = seal(root)
    before = (shown.view / "manifest.yaml").read_bytes()
    with (root / "manifest.yaml").open("r+b") as file:  # in place, as somebody with the file still open would
        file.write(b"x" * len(before))
    (root / "graphs/step.bin").unlink()
    assert (shown.view / "manifest.yaml").read_bytes() == before
    assert (shown.view / "graphs/step.bin").read_bytes() == bytes(1000)


def test_seal_nobody_can_write_what_was_sealed(tmp_path: Path) -> None:
    shown = seal(write_package(tmp_path / "p"))
    with pytest.raises(OSError, match=r"[Pp]ermi"):
        (shown.view / "graphs/step.bin").write_bytes(b"x")
    assert (shown.view / "graphs/step.bin").read_bytes() == bytes(1000)


def test_seal_dropped_leaves_no_descriptor_and_no_folder(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    gc.collect()
    before = _descriptors()
    shown = seal(root)
    base = shown.view.parent
    assert _descriptors() > before
    del shown
    gc.collect()
    assert (_descriptors(), base.exists()) == (before, False)


def test_seal_refused_leaves_no_descriptor_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_package(tmp_path / "p")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(sealed.tempfile, "tempdir", None)
    monkeypatch.setattr(sealed, "_close_to_change", _fails)
    before = _descriptors()
    with pytest.raises(PackageError, match="cannot be read"):
        seal(root)
    assert (_descriptors(), list((tmp_path / "scratch").iterdir())) == (before, [])


def _fails(_: int) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_seal_a_link_put_there_after_the_listing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    root = write_package(tmp_path / "p")
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    for name in ("step.bin", "step.xml"):
        (secret / name).write_text("secret")
    listing = sealed.list_files

    def list_then_swap(path: Path) -> list[str]:
        names = listing(path)
        if what == "file":
            (root / "graphs/step.bin").unlink()
            (root / "graphs/step.bin").symlink_to(secret / "step.bin")
        else:
            (root / "graphs").rename(root.parent / "old")
            (root / "graphs").symlink_to(secret)
        return names

    monkeypatch.setattr(sealed, "list_files", list_then_swap)
    with pytest.raises(PackageError) as caught:
        seal(root)
    assert caught.value.fault.rule == "A08"


def test_seal_a_pipe_put_there_after_the_listing_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_package(tmp_path / "p")
    names = sealed.list_files(root)
    (root / "memory.json").unlink()
    os.mkfifo(root / "memory.json")
    monkeypatch.setattr(sealed, "list_files", lambda _: names)
    with pytest.raises(PackageError) as caught:
        seal(root)
    assert caught.value.fault.rule == "A08"


def test_seal_a_file_that_claims_more_than_memory_is_refused_unread(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    with (root / "graphs/step.bin").open("r+b") as file:
        file.truncate(1 << 43)  # 8 TiB, and not a block of it on the disk
    with pytest.raises(PackageError) as caught:
        seal(root)
    assert caught.value.fault.rule == "size"


def test_seal_without_sealed_memory_copies_privately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_package(tmp_path / "p")
    monkeypatch.delattr(os, "memfd_create")
    shown = seal(root)
    (root / "memory.json").write_text("changed")
    assert not (shown.view / "memory.json").is_symlink()
    assert b"toy" in (shown.view / "memory.json").read_bytes()
    assert shown.view.parent.stat().st_mode & 0o077 == 0


def test_seal_clears_what_a_killed_process_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed.tempfile, "tempdir", str(tmp_path))
    gone, ours = tmp_path / "calserve-sealed-999999999-x", tmp_path / f"calserve-sealed-{os.getpid()}-x"
    for folder in (gone, ours):
        (folder / "package").mkdir(parents=True)
    seal(write_package(tmp_path / "p"))
    assert (gone.exists(), ours.exists()) == (False, True)


def test_seal_a_signature_larger_than_any_is_refused_before_a_byte_is_copied(tmp_path: Path) -> None:
    root = write_package(tmp_path / "p")
    with (root / "signature").open("wb") as file:
        file.truncate((4 << 20) + 1)
    copied: list[int] = []
    with pytest.raises(PackageError, match="its signature is larger than 4194304 bytes") as caught:
        seal(root, copied.append)
    assert (caught.value.fault.rule, copied) == ("size", [])
