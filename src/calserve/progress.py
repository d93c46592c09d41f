"""How a long step tells a person how far it is.

Owns the `Progress` protocol and its three forms: bars for a terminal, plain lines for a log, silence for tests.
Knows nothing of what is being done. Life of the main object: a long task asks `progress.step(title, total, unit)`
for a Step, calls `advance` as it goes and leaves the `with` block when the step is over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, TextIO


class Step(AbstractContextManager["Step"], Protocol):
    """One running step. `advance` may be called with 0; going past the total is not an error."""

    def advance(self, amount: int) -> None: ...


class Progress(Protocol):
    """Where steps are shown.

    total: in `unit`s, None when unknown. unit: "B" is shown as a size, anything else as a count.
    """

    def step(self, title: str, total: int | None = None, unit: str = "") -> Step: ...

    def line(self, text: str) -> None:
        """One line that stays."""


class _SilentStep:
    def __enter__(self) -> _SilentStep:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def advance(self, amount: int) -> None:
        return None


class SilentProgress:
    """Shows nothing; keeps the lines for whoever wants to read them."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, title: str, total: int | None = None, unit: str = "") -> Step:
        return _SilentStep()

    def line(self, text: str) -> None:
        self.lines.append(text)


class _PlainStep:
    """Prints when it starts, at every tenth of a known total, and when it ends."""

    def __init__(self, say: Callable[[str], None], title: str, total: int | None, unit: str) -> None:
        self._say, self._title, self._total, self._unit = say, title, total, unit
        self._at = 0
        self._tenths = 0

    def __enter__(self) -> _PlainStep:
        self._say(f"{self._title} ...")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._say(f"{self._title}: {'done' if kind is None else 'stopped'}")

    def advance(self, amount: int) -> None:
        self._at += amount
        if not self._total:
            return
        tenths = min(10, self._at * 10 // self._total)
        if tenths > self._tenths and tenths < 10:
            self._tenths = tenths
            self._say(f"{self._title}: {tenths * 10} % of {amount_text(self._total, self._unit)}")


class PlainProgress:
    """One line per event, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def step(self, title: str, total: int | None = None, unit: str = "") -> Step:
        return _PlainStep(self.line, title, total, unit)

    def line(self, text: str) -> None:
        self._stream.write(f"{text}\n")  # in one piece: a log line of another thread must not part them
        self._stream.flush()


class _RichStep:
    def __init__(self, stream: TextIO, title: str, total: int | None, unit: str) -> None:
        from rich import progress as bars
        from rich.console import Console

        spinner = bars.SpinnerColumn(finished_text="✓")
        columns: list[bars.ProgressColumn] = [spinner, bars.TextColumn("{task.description}")]
        if total is not None:
            columns += [bars.BarColumn()]
            columns += [bars.DownloadColumn() if unit == "B" else bars.MofNCompleteColumn()]
        columns += [bars.TimeElapsedColumn()]
        self._bars = bars.Progress(*columns, console=Console(file=stream))
        self._task = self._bars.add_task(title, total=total)
        self._total = total

    def __enter__(self) -> _RichStep:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # a step whose total was only an estimate still ends full
            total = self._total if self._total is not None else 1
            self._bars.update(self._task, total=total, completed=total)
        self._bars.stop()

    def advance(self, amount: int) -> None:
        self._bars.advance(self._task, amount)


class RichProgress:
    """Bars on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def step(self, title: str, total: int | None = None, unit: str = "") -> Step:
        return _RichStep(self._stream, title, total, unit)

    def line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def choose_progress(stream: TextIO | None = None) -> Progress:
    """Bars when `stream` (stderr by default) is a terminal, plain lines otherwise."""
    out = sys.stderr if stream is None else stream
    return RichProgress(out) if out.isatty() else PlainProgress(out)


def amount_text(amount: int, unit: str) -> str:
    """`98_362_432, "B"` -> `98.4 MB`; any other unit is printed after the number."""
    if unit != "B":
        return f"{amount} {unit}".rstrip()
    size = float(amount)
    for name in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {name}" if name == "B" else f"{size:.1f} {name}"
        size /= 1000
    return f"{size:.1f} GB"
