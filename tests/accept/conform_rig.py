"""Simulated boards under the proofs, and boards that break one promise each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from calserve.accept.conform.proof import ConformOptions, Rig
from calserve.accept.conform.proofs import BY_ID
from calserve.accept.conform.record import Conformance, MadeBy, ProofRecord
from calserve.accept.conform.run import conclude, prove_one, run_conformance
from calserve.accept.pingpong import PingPongOptions
from calserve.progress import SilentProgress
from calserve.runtime.contract import Board, BoardPackage
from calserve.runtime.sim import PROFILES, SimBoard, SimProfile, VirtualClock, sim_package

MADE = MadeBy("0.0", "0123abc", "2026-08-02T00:00:00Z")
Spoil = Callable[[Any], Any]


def small(name: str = "assumed-lanes", **changes: Any) -> SimProfile:
    """A shipped profile with a short context, so that a proof takes milliseconds."""
    wanted = {"context": 160, **changes}
    if name == "assumed-lanes":
        wanted = {"profiles": (1, 4), **wanted}
    return replace(PROFILES[name], **wanted)


def rig_of(profile: SimProfile, spoil: Spoil | None = None, package: BoardPackage | None = None, **options: Any) -> Rig:
    """spoil: what stands between the proof and a session the board configured."""
    clock = VirtualClock()
    board: Any = SimBoard(profile, clock=clock)
    if spoil is not None:
        board = SpoiledBoard(board, spoil)
    return rig_on(board, package or sim_package(profile), clock, **options)


def rig_on(board: Board, package: BoardPackage, clock: VirtualClock, **options: Any) -> Rig:
    jobs = PingPongOptions(
        clock.now_ns, lambda: clock.spend(100_000), chips=_chips(board), tokens=20, steps=10, repeats=1
    )
    return Rig(board, package, ConformOptions(jobs, **options), SilentProgress(), board.describe())


def _chips(board: Board) -> tuple[int, ...]:
    profile = getattr(board, "profile", None)
    spans = profile.session_chips if profile is not None else (1,)
    return (0,) if 1 in spans else tuple(range(spans[0]))


def prove(proof_id: str, rig: Rig) -> ProofRecord:
    return prove_one(BY_ID[proof_id], rig)


def conform(profile: SimProfile, spoil: Spoil | None = None) -> Conformance:
    rig = rig_of(profile, spoil)
    return run_conformance(rig.board, rig.package, rig.options, MADE, SilentProgress())


def claiming(profile: SimProfile, **states: Any) -> SimProfile:
    """The profile with other declarations."""
    return replace(profile, is_assumed=True, capabilities=MappingProxyType({**profile.capabilities, **states}))


def record_of(rig: Rig, **verdicts: str) -> Conformance:
    """A record whose proofs all passed, but for those named."""
    proofs = tuple(ProofRecord(name, verdicts.get(name, "passed"), "said", {"seen": 1}) for name in BY_ID)
    if "concurrent_jobs" not in verdicts:
        proofs = tuple(
            replace_verdict(proof, "not_supported") if proof.id == "concurrent_jobs" else proof for proof in proofs
        )
    return conclude(rig, proofs, MADE)


def replace_verdict(proof: ProofRecord, verdict: str) -> ProofRecord:
    return ProofRecord(proof.id, verdict, proof.sentence, proof.figures)  # type: ignore[arg-type]


class SpoiledBoard:
    def __init__(self, board: Any, spoil: Spoil) -> None:
        self._board, self._spoil = board, spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._board, name)

    def configure(self, *asked: Any) -> Any:
        code, session = self._board.configure(*asked)
        return code, None if session is None else self._spoil(session)


class Spoiled:
    """A session as it is; the children go wrong in one way each."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.jobs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def submit(self, spec: Any, buffers: Any) -> Any:
        self.jobs += 1
        self.before(spec, buffers)
        return self._session.submit(spec, buffers)

    def before(self, spec: Any, buffers: Any) -> None: ...


class SwapsTwoRows(Spoiled):
    """Decodes of three rows or more: the first two rows' tokens change places."""

    def before(self, spec: Any, buffers: Any) -> None:
        if len(spec.rows) > 2:
            tokens = buffers.host("tokens")
            tokens[[0, 1]] = tokens[[1, 0]]


class WritesInactive(Spoiled):
    """A row nobody uses is run all the same, with the token 0 at position 0."""

    def before(self, spec: Any, buffers: Any) -> None:
        if "valid" not in self._session.graphs[spec.graph].inputs:
            return
        valid = buffers.host("valid")
        for lane in range(len(valid)):
            if not valid[lane]:
                valid[lane] = buffers.host("counts")[lane] = buffers.host("lengths")[lane] = 1


class ForgetsThePast(Spoiled):
    """The second piece of a prompt is written where the first one is."""

    def before(self, spec: Any, buffers: Any) -> None:
        row = spec.rows[0]
        if row.token_count > 1 and row.first_position:
            buffers.set_csr("total_sequence_length", row.token_count)
            buffers.host("positions")[0, : row.token_count] -= row.first_position


class WrongLane(Spoiled):
    """Every job of lane 1 alone writes lane 0."""

    def before(self, spec: Any, buffers: Any) -> None:
        if len(spec.rows) == 1 and spec.rows[0].lane == 1 and "kv_lanes" in self._session.graphs[spec.graph].inputs:
            buffers.host("kv_lanes")[...] = 0


class Misnamed(Spoiled):
    """Completions name another generation."""

    def wait(self, ticket: Any, timeout_ns: int) -> Any:
        code, status = self._session.wait(ticket, timeout_ns)
        return code, None if status is None else replace(status, generation=status.generation + 1)


class ClosesAnyTime(Spoiled):
    def close(self) -> int:
        self._session.close()
        return 0


class TakesAnything(Spoiled):
    """A job of another generation is run as if it were ours."""

    def submit(self, spec: Any, buffers: Any) -> Any:
        return self._session.submit(replace(spec, generation=self._session.generation), buffers)


class LongMirror(Spoiled):
    """The mirror takes any length."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.kv = _LongKv(session.kv)


class _LongKv:
    def __init__(self, kv: Any) -> None:
        self._kv = kv

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    def apply(self, lane: int, units: Any, length: int) -> int:
        return int(self._kv.apply(lane, units, min(length, 100)))


class CancelsNothing(Spoiled):
    """Says that a cancel went well, and does not end the job under its own name."""

    def cancel(self, ticket: Any) -> int:
        return 0

    def wait(self, ticket: Any, timeout_ns: int) -> Any:
        code, status = self._session.wait(ticket, timeout_ns)
        return (13, None) if status is not None and timeout_ns > 0 and self.jobs > 2 else (code, status)


class CrossWrites(Spoiled):
    """A job on chip 1 also writes the first token of chip 0's lane 0."""

    def before(self, spec: Any, buffers: Any) -> None:
        if self._session._calbin.chips == (1,):
            self._session._device.engine.lane((0,), 0).write(0, [(1, 0)])


class ShiftsDecodes(Spoiled):
    """A decode is computed for the position after its own."""

    def before(self, spec: Any, buffers: Any) -> None:
        if all(row.token_count == 1 for row in spec.rows):
            buffers.host("positions")[...] += 1


class ScrubsNothing(Spoiled):
    """Buffers that are given back keep what the job was given."""

    def allocate(self, graph: str, bank: Any) -> Any:
        code, buffers = self._session.allocate(graph, bank)
        if buffers is not None:
            buffers.reset = lambda: 0
        return code, buffers


class MovesMemory(Spoiled):
    """Every job finds its tensors somewhere else."""

    def before(self, spec: Any, buffers: Any) -> None:
        buffers._arrays = {name: array.copy() for name, array in buffers._arrays.items()}


class ReadsStale(Spoiled):
    """The fourth job begins one slot late, and so reads what the lane held before."""

    def before(self, spec: Any, buffers: Any) -> None:
        if self.jobs == 4:
            buffers.set_csr("total_sequence_length", spec.rows[0].first_position + spec.rows[0].token_count + 1)


class IgnoresTrims(Spoiled):
    """A decode goes on where the lane ended before it was cut back."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.longest = 0

    def before(self, spec: Any, buffers: Any) -> None:
        row = spec.rows[0]
        end = row.first_position + row.token_count
        self.longest = 0 if not row.first_position else self.longest
        if end < self.longest:
            buffers.set_csr("total_sequence_length", self.longest + 1)
        self.longest = max(self.longest, end)


class SharesByNameOnly(Spoiled):
    """The mirror takes a unit of another lane, and the lanes stay two memories."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.kv = _AnyUnits(session.kv)


class _AnyUnits:
    def __init__(self, kv: Any) -> None:
        self._kv = kv

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    def apply(self, lane: int, units: Any, length: int) -> int:
        return int(self._kv.apply(lane, (lane,), length))


class Raises(Spoiled):
    def submit(self, spec: Any, buffers: Any) -> Any:
        raise KeyError("a driver's own mistake")
