"""The KV ledger of one generation: who holds which lane and which units, and how far each is written.

Owns: lanes, unit ids, the worst case of every holder (reserved as a count), and one transaction per row of a
job. Must not know: requests (a holder is a name), jobs, tokens, the board.

Life of a lane: `reserve` promises it with its worst case; `begin` opens a transaction of a job and gives it the
unit ids that job needs, lowest first; `submit` then `commit` move its length, `roll_back` leaves it;
`release` frees it, or `abandon` does so once its job retired. `lose` fences it until the generation is rebuilt:
a ledger is never repaired, a new generation gets a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from calserve.core.states import (
    KV_TXN_STEPS,
    LANE_STEPS,
    KvTxnEvent,
    KvTxnState,
    LaneEvent,
    LaneState,
    step,
)


@dataclass(slots=True, eq=False)
class Lane:
    """Invariants: 0 <= committed <= reserved; len(units) <= reserved_units; a holder in every state but FREE
    and, where the holder ended early, RELEASING and UNKNOWN."""

    index: int
    state: LaneState = LaneState.FREE
    holder: str = ""
    committed: int = 0  # tokens the device has surely written
    reserved: int = 0  # tokens, worst case
    reserved_units: int = 0
    units: list[int] = field(default_factory=list)  # in position order


@dataclass(slots=True, eq=False)
class KvTransaction:
    """One row's change of one lane: from `lane.committed` to `target` tokens."""

    lane: Lane
    target: int
    state: KvTxnState = KvTxnState.RESERVED


class KvLedger:
    """Invariants: a unit is free or in exactly one lane; promised units never exceed those that are healthy."""

    __slots__ = (
        "_free_lanes",
        "_free_units",
        "_lane_is_unit",
        "_on_free",
        "fenced",
        "lanes",
        "promised",
        "unit_tokens",
        "units",
        "unknown",
    )

    def __init__(
        self, lanes: int, units: int, unit_tokens: int, lane_is_unit: bool, on_free: Callable[[int], None] | None = None
    ) -> None:
        """lane_is_unit: unit i is lane i, so a lane's only unit is known from the start. on_free: told each lane
        that a job may have touched and that is free again."""
        self.lanes = [Lane(i) for i in range(lanes)]
        self.units = units
        self.unit_tokens = unit_tokens
        self.promised = 0  # units, over every lane that is not free
        self.unknown = 0  # units, fenced with their lanes
        self.fenced = 0  # lanes whose content is unknown
        self._lane_is_unit = lane_is_unit
        self._on_free = on_free
        self._free_lanes = list(range(lanes))
        self._free_units = list(range(units))
        heapify(self._free_lanes)
        heapify(self._free_units)

    # --- what can be promised ---------------------------------------------------------------------------

    def units_for(self, tokens: int) -> int:
        return 1 if self._lane_is_unit else -(-tokens // self.unit_tokens)

    @property
    def free_lanes(self) -> int:
        return len(self._free_lanes)

    @property
    def free_units(self) -> int:
        return len(self._free_units)

    def can_reserve(self, tokens: int) -> bool:
        return bool(self._free_lanes) and self.promised + self.unknown + self.units_for(tokens) <= self.units

    def fits_healthy(self, tokens: int) -> bool:
        """Whether a holder of `tokens` would fit if nobody else held anything: what is fenced stays fenced."""
        return self.fenced < len(self.lanes) and self.unknown + self.units_for(tokens) <= self.units

    # --- a holder's life --------------------------------------------------------------------------------

    def reserve(self, holder: str, tokens: int) -> Lane:
        """The lowest free lane, with `tokens` promised. The caller asked `can_reserve`."""
        if not self.can_reserve(tokens):
            raise RuntimeError(f"{holder}: {tokens} tokens promised beyond the ledger")
        lane = self.lanes[heappop(self._free_lanes)]
        lane.state = step(LANE_STEPS, lane.state, LaneEvent.RESERVE)
        lane.holder = holder
        lane.reserved = tokens
        lane.reserved_units = self.units_for(tokens)
        self.promised += lane.reserved_units
        if self._lane_is_unit:
            self._free_units.remove(lane.index)
            heapify(self._free_units)
            lane.units.append(lane.index)
        return lane

    def begin(self, lane: Lane, tokens: int) -> KvTransaction:
        """Open a transaction that writes `tokens` more; growth cannot fail, it was promised."""
        target = lane.committed + tokens
        if target > lane.reserved:
            raise RuntimeError(f"{lane.holder}: {target} tokens, {lane.reserved} reserved")
        lane.state = step(LANE_STEPS, lane.state, LaneEvent.UPDATE)
        while len(lane.units) * self.unit_tokens < target:
            lane.units.append(heappop(self._free_units))
        return KvTransaction(lane, target)

    def submit(self, txn: KvTransaction) -> None:
        txn.state = step(KV_TXN_STEPS, txn.state, KvTxnEvent.SUBMIT)

    def commit(self, txn: KvTransaction) -> None:
        """The device wrote it and the output was checked. A lane whose holder ended meanwhile is freed."""
        txn.state = step(KV_TXN_STEPS, txn.state, KvTxnEvent.COMMIT)
        lane = txn.lane
        if lane.state is LaneState.RELEASING:
            self._free(lane)
            return
        lane.state = step(LANE_STEPS, lane.state, LaneEvent.COMMIT)
        lane.committed = txn.target

    def roll_back(self, txn: KvTransaction) -> None:
        """The job never reached the device: the lane is as before (it keeps the units it was given)."""
        txn.state = step(KV_TXN_STEPS, txn.state, KvTxnEvent.ROLL_BACK)
        lane = txn.lane
        if lane.state is LaneState.RELEASING:
            self._free(lane)
            return
        lane.state = step(LANE_STEPS, lane.state, LaneEvent.ROLL_BACK)

    def lose(self, txn: KvTransaction) -> None:
        """Nobody knows what the device wrote: the lane and its units are fenced."""
        txn.state = step(KV_TXN_STEPS, txn.state, KvTxnEvent.LOSE)
        lane = txn.lane
        lane.state = step(LANE_STEPS, lane.state, LaneEvent.LOSE)
        self.promised -= lane.reserved_units
        self.unknown += len(lane.units)
        self.fenced += 1
        lane.reserved_units = len(lane.units)

    def release(self, lane: Lane) -> None:
        """The holder ended. Free at once, or when the job that writes the lane has retired."""
        if lane.state is LaneState.UPDATING:
            lane.state = step(LANE_STEPS, lane.state, LaneEvent.ABANDON)
            lane.holder = ""
        elif lane.state is LaneState.UNKNOWN:
            lane.holder = ""
        else:
            self._free(lane)

    def _free(self, lane: Lane) -> None:
        was_touched = lane.state is not LaneState.RESERVED
        lane.state = step(LANE_STEPS, lane.state, LaneEvent.RELEASE)
        self.promised -= lane.reserved_units
        for unit in lane.units:
            heappush(self._free_units, unit)
        lane.units = []  # a new list: a job's row may still show the old one
        lane.holder = ""
        lane.committed = lane.reserved = lane.reserved_units = 0
        heappush(self._free_lanes, lane.index)
        if was_touched and self._on_free is not None:
            self._on_free(lane.index)

    # --- what it shows ----------------------------------------------------------------------------------

    def lanes_by_state(self) -> dict[str, int]:
        counts = {state.value: 0 for state in LaneState}
        for lane in self.lanes:
            counts[lane.state.value] += 1
        return counts

    def units_by_state(self) -> dict[str, int]:
        """free, held (a live holder), quarantined (holder gone, a job may still write), unknown."""
        counts = {"free": len(self._free_units), "held": 0, "quarantined": 0, "unknown": 0}
        for lane in self.lanes:
            key = {LaneState.UNKNOWN: "unknown", LaneState.RELEASING: "quarantined"}.get(lane.state, "held")
            counts[key] += len(lane.units)
        return counts

    def check(self) -> None:
        """Full scan of I2 and I3; raises AssertionError naming what broke."""
        seen: dict[int, str] = dict.fromkeys(self._free_units, "free")
        assert len(seen) == len(self._free_units), "a unit is free twice"
        promised = unknown = fenced = 0
        for lane in self.lanes:
            where = f"lane {lane.index} ({lane.state.value})"
            assert 0 <= lane.committed <= lane.reserved or lane.state is LaneState.UNKNOWN, where
            assert len(lane.units) <= max(lane.reserved_units, 0), f"{where}: more units than promised"
            assert lane.committed <= len(lane.units) * self.unit_tokens, f"{where}: written beyond its units"
            for unit in lane.units:
                assert unit not in seen, f"unit {unit} in {where} and {seen[unit]}"
                seen[unit] = where
            if lane.state is LaneState.UNKNOWN:
                unknown += len(lane.units)
                fenced += 1
            elif lane.state is LaneState.FREE:
                assert (lane.units, lane.holder, lane.reserved_units) == ([], "", 0), f"{where}: not empty"
            else:
                promised += lane.reserved_units
        assert len(seen) == self.units, f"{self.units - len(seen)} units lost"
        assert (promised, unknown, fenced) == (self.promised, self.unknown, self.fenced), "counts drifted"
        assert promised + unknown <= self.units, "promised beyond the pool"
        free = [lane.index for lane in self.lanes if lane.state is LaneState.FREE]
        assert sorted(self._free_lanes) == free, "free lanes drifted"
