"""What was signed opens; whatever differs from it, or was signed by somebody else, does not."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from package_rig import list_files, write_package

from calserve.package import PackageError
from calserve.package.signing import new_key_pair, sign_package, verify_package

pytest.importorskip("model_signing")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ours.key, ours.pub, theirs.key, theirs.pub"""
    root = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        new_key_pair(root / f"{name}.key", root / f"{name}.pub")
    return root


@pytest.fixture
def signed(tmp_path: Path, keys: Path) -> Path:
    root = write_package(tmp_path / "p")
    sign_package(root, keys / "ours.key")
    return root


def refused(root: Path, *public: Path) -> str:
    with pytest.raises(PackageError) as caught:
        verify_package(root, public)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    return caught.value.fault.rule


def test_signed_package_verifies_with_its_key_among_others(signed: Path, keys: Path) -> None:
    found = verify_package(signed, [keys / "theirs.pub", keys / "ours.pub"])
    assert found.files == 10  # all of them, the list of checksums too


def test_package_signed_again_by_another_key_verifies_with_that_one_only(signed: Path, keys: Path) -> None:
    sign_package(signed, keys / "theirs.key")
    assert verify_package(signed, [keys / "theirs.pub"]).files == 10
    assert refused(signed, keys / "ours.pub") == "signature_key"


def test_package_without_a_signature_is_refused(tmp_path: Path, keys: Path) -> None:
    assert refused(write_package(tmp_path / "p"), keys / "ours.pub") == "signature_missing"


def _alter(root: Path) -> None:
    (root / "graphs/step.bin").write_bytes(bytes(999) + b"\1")


def _alter_with_its_checksum(root: Path) -> None:
    _alter(root)
    list_files(root)


def _add(root: Path) -> None:
    (root / "more").write_bytes(b"")


def _add_what_a_repository_leaves(root: Path) -> None:
    (root / ".gitignore").write_bytes(b"")


def _drop(root: Path) -> None:
    (root / "chat_template.jinja").unlink()


def _rename(root: Path) -> None:
    (root / "graphs/step.bin").rename(root / "graphs/other.bin")


def _swap(root: Path) -> None:
    first, second = (root / "memory.json").read_bytes(), (root / "goldens.json").read_bytes()
    (root / "memory.json").write_bytes(second)
    (root / "goldens.json").write_bytes(first)


@pytest.mark.parametrize(
    "change", [_alter, _alter_with_its_checksum, _add, _add_what_a_repository_leaves, _drop, _rename, _swap]
)
def test_package_changed_after_it_was_signed_is_refused(
    signed: Path, keys: Path, change: Callable[[Path], None]
) -> None:
    change(signed)
    assert refused(signed, keys / "ours.pub") == "signature_differs"


def test_signature_whose_list_was_changed_is_refused(signed: Path, keys: Path) -> None:
    bundle = json.loads((signed / "signature").read_bytes())
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    assert b"memory.json" in payload
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload.replace(b"memory.json", b"memory.jsom")).decode()
    (signed / "signature").write_text(json.dumps(bundle))
    assert refused(signed, keys / "ours.pub") == "signature_broken"


def test_signature_of_another_key_that_claims_ours_is_refused(signed: Path, keys: Path) -> None:
    ours = json.loads((signed / "signature").read_bytes())["verificationMaterial"]
    sign_package(signed, keys / "theirs.key")
    bundle = json.loads((signed / "signature").read_bytes())
    bundle["verificationMaterial"] = ours
    (signed / "signature").write_text(json.dumps(bundle))
    assert refused(signed, keys / "ours.pub") == "signature_broken"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b"null",
        b'{"verificationMaterial": {"publicKey": {"hint": 3}}}',
        b"[" * 100_000,
    ],
)
def test_signature_that_is_none_is_refused(signed: Path, keys: Path, text: bytes) -> None:
    (signed / "signature").write_bytes(text)
    assert refused(signed, keys / "ours.pub") == "signature_form"


def test_signature_cut_anywhere_is_refused(signed: Path, keys: Path) -> None:
    whole = (signed / "signature").read_bytes()
    for end in range(0, len(whole) - 1, 211):
        (signed / "signature").write_bytes(whole[:end])
        assert refused(signed, keys / "ours.pub") == "signature_form"


def test_signature_larger_than_any_is_refused_unread(signed: Path, keys: Path) -> None:
    with (signed / "signature").open("wb") as file:
        file.truncate((4 << 20) + 1)
    assert refused(signed, keys / "ours.pub") == "size"


def test_private_key_is_for_its_owner_only_and_never_replaced(tmp_path: Path) -> None:
    new_key_pair(tmp_path / "k.key", tmp_path / "k.pub")
    assert stat.S_IMODE((tmp_path / "k.key").stat().st_mode) == 0o600
    secret = (tmp_path / "k.key").read_bytes()
    with pytest.raises(PackageError, match="exists"):
        new_key_pair(tmp_path / "k.key", tmp_path / "other.pub")
    assert (tmp_path / "k.key").read_bytes() == secret
    assert not (tmp_path / "other.pub").exists()


def test_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    new_key_pair(tmp_path / "k.key", tmp_path / "k.pub", b"right")
    root = write_package(tmp_path / "p")
    for password in (None, b"wrong"):
        with pytest.raises(PackageError, match="no private key this password opens"):
            sign_package(root, tmp_path / "k.key", password)
        assert not (root / "signature").exists()
    sign_package(root, tmp_path / "k.key", b"right")
    assert verify_package(root, [tmp_path / "k.pub"]).files == 10


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_public_key_that_is_none_is_refused(signed: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.pub").write_text(text)
    assert refused(signed, tmp_path / "bad.pub") == "key"
