"""The KV ledger against a naive reference: reserve, append, roll back, free, cancel, fault (seed 002, section 17.2).

The reference keeps one dict per lane and counts everything anew each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from budget import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from calserve.core.kv import KvLedger, KvTransaction, Lane
from calserve.core.states import LaneState


@dataclass
class Held:
    lane: Lane
    reserved: int
    committed: int = 0
    txn: KvTransaction | None = None
    cancelled: bool = False
    units: list[int] = field(default_factory=list)


class KvMachine(RuleBasedStateMachine):
    @initialize(lanes=st.integers(1, 5), units=st.integers(1, 20), tokens=st.integers(1, 5), whole=st.booleans())
    def start(self, lanes: int, units: int, tokens: int, whole: bool) -> None:
        self.unit = 32 if whole else tokens
        self.total = lanes if whole else units
        self.whole = whole
        self.lanes = lanes
        self.freed: list[int] = []
        self.ledger = KvLedger(lanes, self.total, self.unit, whole, on_free=self.freed.append)
        self.held: dict[str, Held] = {}
        self.dead_lanes: set[int] = set()
        self.dead_units: set[int] = set()
        self.count = 0

    # --- the reference ----------------------------------------------------------------------------------

    def units_for(self, tokens: int) -> int:
        return 1 if self.whole else (tokens + self.unit - 1) // self.unit

    def promised(self) -> int:
        return sum(self.units_for(held.reserved) for held in self.held.values())

    def fits(self, tokens: int) -> bool:
        lane_left = self.lanes - len(self.held) - len(self.dead_lanes) > 0
        return lane_left and self.promised() + len(self.dead_units) + self.units_for(tokens) <= self.total

    def some(self, index: int, **wanted: bool) -> str | None:
        """A holder, by whether it is in a job and whether it was cancelled."""
        names = [
            name
            for name, held in self.held.items()
            if (held.txn is not None) == wanted.get("in_job", held.txn is not None)
            and held.cancelled == wanted.get("cancelled", held.cancelled)
        ]
        return names[index % len(names)] if names else None

    # --- rules ------------------------------------------------------------------------------------------

    @rule(tokens=st.integers(1, 30))
    def reserve(self, tokens: int) -> None:
        assert self.ledger.can_reserve(tokens) == self.fits(tokens)
        if not self.fits(tokens):
            return
        self.count += 1
        name = f"h{self.count}"
        lane = self.ledger.reserve(name, tokens)
        taken = {held.lane.index for held in self.held.values()} | self.dead_lanes
        assert lane.index == min(set(range(self.lanes)) - taken)
        self.held[name] = Held(lane, tokens, units=list(lane.units))

    @rule(index=st.integers(0, 9), tokens=st.integers(1, 30))
    def append(self, index: int, tokens: int) -> None:
        name = self.some(index, in_job=False)
        if name is None:
            return
        held = self.held[name]
        grow = min(tokens, held.reserved - held.committed)
        if grow == 0:
            return
        held.txn = self.ledger.begin(held.lane, grow)
        assert held.lane.units[: len(held.units)] == held.units, "a unit moved"
        held.units = list(held.lane.units)
        assert len(held.units) >= self.units_for(held.committed + grow)
        assert len(held.units) <= self.units_for(held.reserved)

    @rule(index=st.integers(0, 9), submitted=st.booleans())
    def come_back(self, index: int, submitted: bool) -> None:
        """Good after a submit, or never started."""
        name = self.some(index, in_job=True)
        if name is None:
            return
        held = self.held[name]
        assert held.txn is not None
        if submitted:
            self.ledger.submit(held.txn)
            self.ledger.commit(held.txn)
            held.committed = held.txn.target
        else:
            self.ledger.roll_back(held.txn)
        held.txn = None
        if held.cancelled:
            assert self.freed.pop() == held.lane.index
            del self.held[name]

    @rule(index=st.integers(0, 9))
    def cancel(self, index: int) -> None:
        name = self.some(index, cancelled=False)
        if name is None:
            return
        held = self.held[name]
        self.ledger.release(held.lane)
        held.cancelled = True
        if held.txn is None:
            self.freed.clear()
            del self.held[name]
        else:
            assert self.freed == [], "freed under a job"

    @precondition(lambda self: len(self.dead_lanes) < self.lanes)
    @rule(index=st.integers(0, 9), submitted=st.booleans())
    def fault(self, index: int, submitted: bool) -> None:
        name = self.some(index, in_job=True)
        if name is None:
            return
        held = self.held.pop(name)
        assert held.txn is not None
        if submitted:
            self.ledger.submit(held.txn)
        self.ledger.lose(held.txn)
        if not held.cancelled:
            self.ledger.release(held.lane)
        self.dead_lanes.add(held.lane.index)
        self.dead_units |= set(held.units)

    # --- always -----------------------------------------------------------------------------------------

    @invariant()
    def ledger_and_reference_agree(self) -> None:
        if not hasattr(self, "ledger"):
            return
        self.ledger.check()
        used = [unit for held in self.held.values() for unit in held.units]
        assert len(set(used)) == len(used), "a unit in two lanes"
        assert not set(used) & self.dead_units, "an unknown unit in use"
        assert self.ledger.promised == self.promised()
        assert self.ledger.free_units == self.total - len(used) - len(self.dead_units)
        assert self.ledger.unknown == len(self.dead_units)
        assert self.ledger.free_lanes == self.lanes - len(self.held) - len(self.dead_lanes)
        for held in self.held.values():
            assert held.lane.units == held.units
            if not held.cancelled:
                assert held.lane.committed == held.committed <= held.lane.reserved == held.reserved
        for index in self.dead_lanes:
            assert self.ledger.lanes[index].state is LaneState.UNKNOWN


KvMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestKvMachine = KvMachine.TestCase
