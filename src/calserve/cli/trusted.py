"""The policy of signatures, the same for every command that puts a package on a board.

Owns the variable that asks for it. Where a signature is required, a package that none of the keys has signed is not
read, whichever command was to load it; what was verified is the sealed copy that the command then goes on with.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from calserve.package.sealed import Sealed, seal
from calserve.package.signing import verify_sealed

REQUIRE_VARIABLE = "CALSERVE_REQUIRE_SIGNATURE"


def required_keys(given: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Public keys one of which must have signed a package: those of a flag, else those of the environment."""
    return tuple(given) or tuple(Path(key) for key in os.environ.get(REQUIRE_VARIABLE, "").split(os.pathsep) if key)


def sealed_package(path: Path) -> Sealed | None:
    """The package at `path` as it is now, its signature checked where one is required; None where there is none to
    read, which whoever opens it will say. Raises PackageError."""
    if not path.is_dir():
        return None
    sealed = seal(path)
    keys = required_keys()
    if keys:
        verify_sealed(sealed, keys)
    return sealed
