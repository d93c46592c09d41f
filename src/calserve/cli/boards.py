"""Which boards there are. The one place that turns a board's name into a board."""

from __future__ import annotations

from calserve.cli.refusals import Refusal
from calserve.runtime.contract import Board, BoardPackage, LoadOptions


def open_board(name: str, chips: int = 1, *, is_shared: bool = False) -> Board:
    """Open the board `name` exclusively; `is_shared` only for benches, which load several sides one beside another."""
    if name == "openvino":
        from calserve.runtime.openvino import OpenVinoBoard

        if is_shared:
            import tempfile
            from pathlib import Path

            return OpenVinoBoard.open(chips, lock_directory=Path(tempfile.mkdtemp(prefix="calserve-bench-")))
        try:
            return OpenVinoBoard.open(chips)
        except ValueError as error:
            raise Refusal(str(error)) from None
    raise Refusal(f"There is no board {name!r} to serve on; there is openvino.")


def load_options(package: BoardPackage, chips: int, max_in_flight: int) -> dict[str, LoadOptions]:
    """One session on one chip; with two chips, a copy of the package on each."""
    return {
        f"chip{chip}": LoadOptions(
            chips=(chip,),
            numerics=package.numerics,
            lanes=package.max_lanes,
            kv_tokens=package.max_lanes * package.context,
            max_in_flight=max_in_flight,
        )
        for chip in range(chips)
    }
