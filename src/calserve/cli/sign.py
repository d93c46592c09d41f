"""`calserve keygen`, `sign` and `verify`: signatures over whole packages, by keys that stay offline.

A password comes from a file or the environment, never from the command line, where everyone on the machine reads it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from calserve.cli.app import app
from calserve.cli.outputs import check_outside
from calserve.cli.refusals import Refusal, told_in_one_sentence

PASSWORD_VARIABLE = "CALSERVE_KEY_PASSWORD"
MAX_PASSWORD_BYTES = 1024

PasswordFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help=f"File whose first line is the private key's password; else ${PASSWORD_VARIABLE}."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def keygen(
    out: Annotated[Path, typer.Option("-o", "--out", help="NAME of the pair: NAME.key is secret, NAME.pub is not.")],
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a key pair to sign packages with. The private key is encrypted when a password is given."""
    with told_in_one_sentence():
        from calserve.package.signing import new_key_pair

        private, public = out.with_name(f"{out.name}.key"), out.with_name(f"{out.name}.pub")
        fingerprint = new_key_pair(private, public, _password(password_file))
        _tell({"private": str(private), "public": str(public), "key": fingerprint}, as_json,
              f"{private} (keep it secret) and {public}, key {fingerprint[:16]}")  # fmt: skip


@app.command()
def sign(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    key: Annotated[Path, typer.Option(help="The private key, PEM.")],
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Sign a package: every file of it, by name and content. A package that does not open is not signed."""
    with told_in_one_sentence():
        from calserve.package.reader import open_models
        from calserve.package.signing import sign_package

        check_outside(key, "--key", package)
        open_models(package)
        signed = sign_package(package, key, _password(password_file))
        _tell({"package": str(package), "files": signed.files, "key": signed.key}, as_json,
              f"{package} signed: {signed.files} files, key {signed.key[:16]}")  # fmt: skip


@app.command()
def verify(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    key: Annotated[list[Path], typer.Option(help="A trusted public key, PEM; may be given again.")],
    as_json: AsJson = False,
) -> None:
    """Hold a package against its signature. Exit code 0 when it holds, 1 with the reason when it does not."""
    with told_in_one_sentence():
        from calserve.package.signing import verify_package

        signed = verify_package(package, key)
        _tell({"package": str(package), "files": signed.files, "key": signed.key}, as_json,
              f"{package} is as it was signed: {signed.files} files, key {signed.key[:16]}")  # fmt: skip


def _password(path: Path | None) -> bytes | None:
    if path is None:
        return os.environ.get(PASSWORD_VARIABLE, "").encode() or None
    with path.open("rb") as file:
        first = file.read(MAX_PASSWORD_BYTES + 1).split(b"\n")[0].rstrip(b"\r")
    if not first or len(first) > MAX_PASSWORD_BYTES:
        raise Refusal(f"{path} holds no password in its first line, or one of over {MAX_PASSWORD_BYTES} bytes.")
    return first


def _tell(result: dict[str, object], as_json: bool, text: str) -> None:
    typer.echo(json.dumps(result, indent=1) if as_json else text)
