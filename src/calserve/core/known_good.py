"""Which packages of a session were good: what a refused one may be rolled back to.

Owns: the last two packages that were Ready and not refused since. Must not know: why one was refused. Life: lives as
long as its session; an operator's unload empties it, for what was taken down on purpose must not come back by itself.
"""

from __future__ import annotations

from calserve.core.events import Load

# The one that serves and the one before it.
KEPT = 2


class KnownGood:
    """Invariants: a refused package is not in it; between two packages that are Ready there is one roll-back."""

    __slots__ = ("_good", "_is_spent", "refused")

    def __init__(self) -> None:
        self._good: list[Load] = []
        self._is_spent = False
        self.refused = ""  # the package that was refused last, until it serves again or an operator loads

    @property
    def last(self) -> Load | None:
        return self._good[-1] if self._good else None

    def asked(self) -> None:
        """An operator ordered a load: the next failure may roll back again."""
        self._is_spent = False
        self.refused = ""

    def ready(self, load: Load) -> None:
        self._is_spent = False
        if self.refused == load.package:  # it was tried again, and is good
            self.refused = ""
        self._good = [*(one for one in self._good if one.package != load.package), load][-KEPT:]

    def refuse(self, package: str) -> Load | None:
        """The package to go back to, or None: there is no other, or the one before was a roll-back itself."""
        self.refused = package
        self._good = [one for one in self._good if one.package != package]
        if self._is_spent or not self._good:
            return None
        self._is_spent = True
        return self._good[-1]

    def clear(self) -> None:
        self._good = []
        self.asked()
