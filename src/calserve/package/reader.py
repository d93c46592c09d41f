"""From a directory to what a board takes: the only way a package comes into the server.

Owns nothing but the way: a package is put through the gates, and the first finding that refuses it is the refusal. Must
not touch a board. Life of the main object: a directory becomes one PackageTree, and that one frozen BoardPackage a
model; the files are not read again except by role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from calserve.package.fault import PackageError
from calserve.package.gates.rules import GateName
from calserve.package.gates.run import How, inspect
from calserve.package.sealed import Sealed, seal
from calserve.package.signing import verify_sealed
from calserve.package.tree import PackageTree, board_package, graph_roles, model_hash
from calserve.runtime.contract import BoardPackage

__all__ = [
    "PackageTree",
    "graph_roles",
    "model_hash",
    "models_of",
    "open_models",
    "open_package",
    "open_sealed",
    "open_tree",
    "read_tree",
]


def open_package(path: Path, sealed: Sealed | None = None) -> BoardPackage:
    """The package of one model at `path`, through the gates.

    sealed: read this copy instead. Raises PackageError: one sentence, the rule's id in `.fault.rule`.
    """
    return one_model(open_models(path, sealed))


def open_models(path: Path, sealed: Sealed | None = None) -> tuple[BoardPackage, ...]:
    """As `open_package`, for a package of any number of models, in the manifest's order."""
    return models_of(open_tree(path, sealed))


def open_sealed(path: Path, keys: Sequence[Path] = ()) -> tuple[BoardPackage, ...]:
    """As `open_models`, for who puts it on a board: files as they were checked, whatever becomes of the directory.

    keys: public keys one of which must have signed it; that is asked before anything reads a byte. Raises PackageError.
    """
    if not path.is_dir():
        return open_models(path)  # which says what it is instead
    sealed = seal(path)
    if keys:
        verify_sealed(sealed, keys)
    root = path.resolve()
    return tuple(
        replace(package, root=root, files=SealedFiles(package.files, sealed)) for package in open_models(path, sealed)
    )


def one_model(models: Sequence[BoardPackage]) -> BoardPackage:
    """The model of a package of one. Raises PackageError."""
    if len(models) != 1:
        names = ", ".join(model.model for model in models)
        raise PackageError(
            "several_models", f"{models[0].root} holds {len(models)} models ({names}), and one is needed here."
        )
    return models[0]


class SealedFiles(dict[str, Path]):
    """Paths by role into a sealed copy, which lives as long as they do."""

    def __init__(self, files: Mapping[str, Path], sealed: Sealed) -> None:
        super().__init__(files)
        self._sealed = sealed


def open_tree(path: Path, sealed: Sealed | None = None) -> PackageTree:
    """As `open_models`, for who needs what the package says of itself too; the files are read once for both."""
    return _tree(path, "F", sealed)


def models_of(tree: PackageTree) -> tuple[BoardPackage, ...]:
    """What a board takes of each model of an opened package, in the manifest's order."""
    return tuple(board_package(tree, model) for model in tree.manifest.models)


def read_tree(path: Path) -> PackageTree:
    """The package at `path` through gates A and B: files as listed, every part decoded. Raises PackageError."""
    return _tree(path, "B")


def _tree(path: Path, last: GateName, sealed: Sealed | None = None) -> PackageTree:
    inspection = inspect(path, How(last=last, sealed=sealed))
    failure = inspection.failure
    if failure is not None:
        raise PackageError(failure.rule.id, f"{path}: {failure.sentence}", failure.limit, failure.given)
    assert inspection.tree is not None, "gate B passed and left no tree"
    return inspection.tree
