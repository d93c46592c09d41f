"""One board under the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calserve.runtime.contract import Board, BoardPackage


@dataclass(frozen=True, slots=True)
class BoardCase:
    """open: a fresh board, exclusively held until it is closed."""

    name: str
    open: Callable[[], Board]
    package: BoardPackage
