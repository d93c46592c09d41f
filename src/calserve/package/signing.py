"""Signatures over whole packages, by keys that stay offline.

Owns signing, verifying and making keys, in the format of the `model-signing` library (a Sigstore bundle over every
file's sha256, signed by an elliptic-curve key); needs the extra `sign`. Must not know who asks or what a package means:
it sees sealed bytes only, so that a signature is checked before anything else reads them. No network is used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calserve.package.fault import PackageError
from calserve.package.manifest import SIGNATURE
from calserve.package.sealed import Sealed, seal

MAX_KEY_BYTES = 64 << 10
# How the library tells a difference, and the names in it.
_MISMATCH = "Signature mismatch"
_NAMED = re.compile(r"(?:found in model|files in model) '[^']*': ([^\"\]]{1,300})|Hash mismatch for '([^']{1,300})'")
_CURVES = "an elliptic-curve key on P-256, P-384 or P-521, in PEM"


@dataclass(frozen=True, slots=True)
class Signed:
    """key: which public key it was, by the sha256 of its PEM."""

    files: int
    key: str


def sign_package(root: Path, key: Path, password: bytes | None = None) -> Signed:
    """Sign every file of the package at `root` and write the signature into it, replacing one that is there.

    Raises PackageError: no usable private key, a wrong password, files that cannot be read or written.
    """
    _check_library()
    _read_key(key, is_private=True)
    from model_signing import signing

    sealed = seal(root)
    config = signing.Config().set_hashing_config(_hashing())
    try:
        config.use_elliptic_key_signer(private_key=key, password=password)
    except (TypeError, ValueError):
        raise PackageError("key", f"{key} is no private key this password opens: {_CURVES} is needed.") from None
    draft = sealed.view.parent / "draft"
    config.sign(sealed.view, draft)
    text = draft.read_bytes()
    temporary = root / f".{SIGNATURE}.{os.getpid()}"
    try:
        temporary.write_bytes(text)
        temporary.replace(root / SIGNATURE)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PackageError("target_unwritable", f"{root} cannot be signed: {error.strerror}.") from None
    return Signed(len(sealed.digests), _hint(text))


def verify_sealed(sealed: Sealed, keys: Sequence[Path]) -> Signed:
    """Hold the sealed files against their signature; any of `keys` may have made it.

    Raises PackageError: no signature, one by another key, one that does not hold, or a file it does not cover.
    """
    _check_library()
    pems = [_read_key(key, is_private=False) for key in keys]
    if sealed.signature is None:
        raise PackageError("signature_missing", f"{sealed.origin} is not signed, and a signature is required.")
    hint = _hint(sealed.signature.read_bytes())
    if not hint:
        raise PackageError("signature_form", f"{sealed.origin}: its signature is not one that names its key.")
    for key, pem in zip(keys, pems, strict=True):
        if _fingerprint(pem) == hint:
            _verify(sealed, key)
            return Signed(len(sealed.digests), hint)
    raise PackageError(
        "signature_key", f"{sealed.origin} was signed by the key {hint[:16]}, which is not trusted here."
    )


def verify_package(root: Path, keys: Sequence[Path]) -> Signed:
    """As `verify_sealed`, for a directory."""
    if not root.is_dir():
        raise PackageError("not_a_directory", f"{root} is not a package directory.")
    return verify_sealed(seal(root), keys)


def new_key_pair(private: Path, public: Path, password: bytes | None = None) -> str:
    """Write a new P-256 key pair; the private one readable by its owner only. Returns the public key's fingerprint.

    Raises PackageError when either file exists or cannot be written.
    """
    _check_library()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
    shown = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    written: list[Path] = []
    try:
        private.parent.mkdir(parents=True, exist_ok=True)
        for path, text, mode in ((private, secret, 0o600), (public, shown, 0o644)):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise PackageError("key", f"{error.filename} cannot be written: {error.strerror}.") from None
    return _fingerprint(shown)


def _verify(sealed: Sealed, key: Path) -> None:
    from cryptography.exceptions import InvalidSignature
    from model_signing import verifying

    config = verifying.Config().use_elliptic_key_verifier(public_key=key).set_hashing_config(_hashing())
    try:
        config.verify(sealed.view, sealed.signature)
    except InvalidSignature:
        raise PackageError("signature_broken", f"{sealed.origin}: its signature was not made by its key.") from None
    except Exception as error:  # hostile bytes in a parser that is not ours
        told = str(error)
        if isinstance(error, ValueError) and told.startswith(_MISMATCH):
            names = ", ".join("".join(found) for found in _NAMED.findall(told)[:3]) or "its files"
            raise PackageError(
                "signature_differs", f"{sealed.origin} is not what was signed: {names} changed, came or went."
            ) from None
        raise PackageError(
            "signature_form", f"{sealed.origin}: its signature cannot be read ({type(error).__name__})."
        ) from None


def _hashing() -> Any:
    """Every file by its sha256. The view's names are links of our own making, to sealed bytes."""
    from model_signing import hashing

    config = hashing.Config().use_file_serialization(hashing_algorithm="sha256", allow_symlinks=True)
    return config.set_allow_symlinks(True).set_ignored_paths(paths=(), ignore_git_paths=False)


def _read_key(path: Path, *, is_private: bool) -> bytes:
    kind = "private" if is_private else "public"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        raise PackageError("key", f"The {kind} key {path} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_KEY_BYTES:
        raise PackageError("key", f"{path} is too large for a key.")
    if is_private:
        return data
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise PackageError("key", f"{path} is not a public key: {_CURVES} is needed.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise PackageError("key", f"{path} is another kind of key: {_CURVES} is needed.")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _fingerprint(pem: bytes) -> str:
    import hashlib

    return hashlib.sha256(pem).hexdigest()


def _hint(signature: bytes) -> str:
    """The fingerprint a signature carries; empty where it carries none."""
    try:
        hint = json.loads(signature)["verificationMaterial"]["publicKey"]["hint"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return hint if isinstance(hint, str) else ""


def _check_library() -> None:
    missing = [name for name in ("model_signing", "OpenSSL", "cryptography") if find_spec(name) is None]
    if missing:
        raise PackageError("sign_missing", "Signatures need the extra `sign`: pip install 'calserve[sign]'.")
