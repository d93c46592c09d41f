"""A board from a person's own file: `--board-factory FILE.py:make`.

Owns: how that file is found and called. It is code, so it is run only when it was named on the command line, and never
from inside a package: what a package holds is data.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calserve.cli.refusals import Refusal
from calserve.package.manifest import MANIFEST
from calserve.runtime.contract import Board, BoardPackage

Made = tuple[Board, BoardPackage]


def make_board(named: str, model: str | None) -> Made:
    """Call the factory with the package directory, or None: `make(model: Path | None) -> (Board, BoardPackage)`.

    Raises Refusal: one sentence; what the factory itself raises is told with its file.
    """
    name, separator, function = named.rpartition(":")
    if not separator or not function.isidentifier():
        raise Refusal(f"--board-factory takes FILE.py:function, not {named[:80]!r}.")
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise Refusal(f"--board-factory {name[:200]} is not a Python file.")
    inside = next((folder for folder in path.resolve().parents if (folder / MANIFEST).exists()), None)
    if inside is not None:
        raise Refusal(f"{path} lies in the package {inside}, and nothing in a package is ever run.")
    make = _function(path, function)
    try:
        made = make(Path(model) if model is not None else None)
    except Exception as error:
        raise Refusal(f"{path}: {function} raised {type(error).__name__}: {error}.") from error
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], BoardPackage):
        raise Refusal(f"{path}: {function} must give a board and its BoardPackage.")
    _check_described(path, made[0])
    return made


def _check_described(path: Path, board: Board) -> None:
    """A board that cannot say what it is cannot be proven anything of."""
    try:
        has_chips = bool(board.describe().chips)
    except Exception as error:
        raise Refusal(f"{path}: describe of its board raised {type(error).__name__}: {error}.") from error
    if not has_chips:
        raise Refusal(f"{path}: its board has no chip.")


def _function(path: Path, name: str) -> Callable[[Path | None], Any]:
    spec = importlib.util.spec_from_file_location(f"board_factory_{path.stem}", path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Refusal(f"{path} cannot be loaded: {type(error).__name__}: {error}.") from error
    found: Callable[[Path | None], Any] | None = getattr(module, name, None)
    if not callable(found):
        raise Refusal(f"{path} has no function {name}.")
    return found
