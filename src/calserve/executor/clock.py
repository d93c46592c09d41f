"""The one kind of time the executor knows: integer nanoseconds from an unknown start, handed in by `cli`."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], int]
