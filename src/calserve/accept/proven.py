"""A board that has evidence: as it is, but for the capabilities of which a recorded run says something here.

Owns: nothing but the changed answer of `describe`. Life: wrapped around an open board by the composition root once the
evidence was read; everything goes straight through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from calserve.accept.claims import Claim
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


@dataclass(frozen=True, slots=True)
class StatedFacts:
    """What takes the place of a board's own declaration.

    claims: states that a run gives, by capability. capability: C0 by the run in `proof`, or C1 when `proof` is empty:
    declared is not proven.
    """

    claims: Mapping[str, Claim]
    capability: str
    proof: str

    def of(self, facts: BoardFacts) -> BoardFacts:
        states, proven_by = dict(facts.capabilities), dict(facts.proven_by)
        for name, claim in self.claims.items():
            states[name] = claim.state
            proven_by.pop(name, None)
            if claim.state is Evidence.C0:
                proven_by[name] = claim.proof
        proven_by.pop(self.capability, None)
        if self.proof:
            states[self.capability] = Evidence.C0
            proven_by[self.capability] = self.proof
        elif states.get(self.capability) is Evidence.C0:
            states[self.capability] = Evidence.C1
        return replace(facts, capabilities=MappingProxyType(states), proven_by=MappingProxyType(proven_by))


class ProvenBoard:
    """`Board` whose `capability` is C0, by the run in `proof`, or C1 when `proof` is empty: declared is not proven.

    claims: states that other runs give to other capabilities, in place of the board's own.
    """

    def __init__(
        self, board: Board, capability: str, proof: str, claims: Mapping[str, Claim] = MappingProxyType({})
    ) -> None:
        self._board = board
        self._stated = StatedFacts(claims, capability, proof)

    def describe(self) -> BoardFacts:
        return self._stated.of(self._board.describe())

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
