"""A board that has evidence: as it is, but for one capability that a recorded run proves here.

Owns: nothing but the changed answer of `describe`. Life: wrapped around an open board by the composition root once
`allowed_in_flight` said yes; everything goes straight through.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from calserve.core.commands import ResetScope
from calserve.runtime.contract import (
    Board,
    BoardFacts,
    BoardPackage,
    Code,
    Counters,
    Evidence,
    Health,
    LoadOptions,
    Session,
    Telemetry,
    TraceSpan,
)


class ProvenBoard:
    """`Board` whose `capability` is C0, by the run in `proof`, or C1 when `proof` is empty: declared is not proven."""

    def __init__(self, board: Board, capability: str, proof: str) -> None:
        self._board = board
        self._capability = capability
        self._proof = proof

    def describe(self) -> BoardFacts:
        facts = self._board.describe()
        states, proven_by = dict(facts.capabilities), dict(facts.proven_by)
        proven_by.pop(self._capability, None)
        if self._proof:
            states[self._capability] = Evidence.C0
            proven_by[self._capability] = self._proof
        elif states.get(self._capability) is Evidence.C0:
            states[self._capability] = Evidence.C1
        return replace(facts, capabilities=MappingProxyType(states), proven_by=MappingProxyType(proven_by))

    def health(self) -> Health:
        return self._board.health()

    def telemetry(self, chip: int) -> Telemetry:
        return self._board.telemetry(chip)

    def counters(self) -> Counters:
        return self._board.counters()

    def trace(self, since_ns: int) -> tuple[TraceSpan, ...]:
        return self._board.trace(since_ns)

    def configure(
        self, package: BoardPackage, options: LoadOptions, name: str, generation: int
    ) -> tuple[Code, Session | None]:
        return self._board.configure(package, options, name, generation)

    def reset(self, scope: ResetScope, session: str | None) -> Code:
        return self._board.reset(scope, session)

    def close(self) -> None:
        self._board.close()
