"""Numbers on the command line: each flag has a range that its help states, and one sentence refuses what is outside.

Owns: how a range is stated and held. Must not know: what a number is for. What is no number at all is for the reader of
the command line (exit code 2); infinity and what is not a number (NaN) are numbers to it and outside every range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from calserve.cli.refusals import REFUSED, say


def ranged(low: float, high: float, about: str, *names: str, is_above: bool = False) -> Any:
    """An option whose value is `low` to `high`, both included; with `is_above`, `low` itself is not.

    about: its help, without the range. names: how it is written, where that does not follow from the parameter.
    """
    stated = f"above {low} and at most {high}" if is_above else f"{low} to {high}"
    return typer.Option(*names, help=f"{about} ({stated})", callback=_hold(low, high, stated, is_above=is_above))


def _hold(
    low: float, high: float, stated: str, *, is_above: bool
) -> Callable[[typer.CallbackParam, float | None], float | None]:
    def check(param: typer.CallbackParam, value: float | None) -> float | None:
        if value is None or (low <= value <= high and not (is_above and value == low)):  # false for NaN
            return value
        say(f"{param.opts[0]} is {stated}, not {str(value)[:60]}.")
        raise typer.Exit(REFUSED)

    return check
