"""A session driven by hand: encode, submit, wait, argmax, and nothing that decides.

Owns: the bookkeeping a naive user of the contract needs (lanes, units, lengths). Must not know: which board it
drives. `change` is where a test plants its mutant: it gets the true job and returns the one that is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from calserve.core.board import RowBinding
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.runtime.contract import (
    Board,
    BoardPackage,
    Evidence,
    GraphContract,
    HostBuffers,
    KvLayout,
    LoadOptions,
    Session,
    StatusKind,
    Ticket,
)
from calserve.runtime.encoding import encode, logits_index

SECONDS = 1_000_000_000
LONG_NS = 600 * SECONDS

Tokens = list[int]
Sent = tuple[JobSpec, list[Tokens]]
Change = Callable[[JobSpec, list[Tokens]], Sent]


@dataclass(slots=True)
class Line:
    """One sequence: the lane it sits in, the units it holds, how many tokens its KV has."""

    lane: int
    units: tuple[int, ...] = ()
    length: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one line does in one job."""

    line: Line
    tokens: Tokens
    logits: LogitsWanted = LogitsWanted.LAST


@dataclass(frozen=True, slots=True)
class Flying:
    """A job in flight and the way to its results."""

    spec: JobSpec
    contract: GraphContract
    buffers: HostBuffers
    ticket: Ticket


@dataclass(slots=True)
class Hand:
    """Drives one session. Invariants: a unit belongs to one line; a line's length is what its jobs wrote."""

    session: Session
    generation: int = 1
    jobs: count[int] = field(default_factory=lambda: count(1))
    _buffers: dict[tuple[str, Bank], HostBuffers] = field(default_factory=dict)
    _free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free = list(range(self.session.kv_units))

    def line(self, lane: int) -> Line:
        return Line(lane)

    def prefill(self, line: Line, ids: Tokens, chunks: Sequence[int] = ()) -> np.ndarray:
        """Logits of the last token; the prompt in one job, or in pieces of the given lengths."""
        pieces, at = list(chunks) or [len(ids)], 0
        assert sum(pieces) == len(ids)
        logits: list[np.ndarray | None] = []
        for size in pieces:
            wanted = LogitsWanted.LAST if at + size == len(ids) else LogitsWanted.NONE
            logits = self.step([Turn(line, ids[at : at + size], wanted)])
            at += size
        assert logits[0] is not None
        return logits[0]

    def decode(self, lines: Sequence[Line], tokens: Sequence[int], change: Change | None = None) -> list[np.ndarray]:
        """Logits of every line after one more token each."""
        turns = [Turn(line, [token]) for line, token in zip(lines, tokens, strict=True)]
        return [row for row in self.step(turns, change) if row is not None]

    def greedy(self, line: Line, prompt: Tokens, tokens: int) -> Tokens:
        """`tokens` ids after `prompt`."""
        out = [best(self.prefill(line, prompt))]
        while len(out) < tokens:
            out.append(best(self.decode([line], out[-1:])[0]))
        return out

    def step(self, turns: Sequence[Turn], change: Change | None = None) -> list[np.ndarray | None]:
        """One job from start to end; a copy of each row's last logits, None where none were asked."""
        spec, tokens = self.describe(turns)
        if change is not None:
            spec, tokens = change(spec, tokens)
        results = self.land(self.fly(spec, tokens))
        for turn in turns:
            turn.line.length += len(turn.tokens)
        return results

    def again(self, lines: Sequence[Line], tokens: Sequence[int], change: Change | None = None) -> list[np.ndarray]:
        """A decode that leaves the lines as they were: its KV is written again by the next one."""
        rows = self.decode(lines, tokens, change)
        for line in lines:
            line.length -= 1
        return rows

    def describe(self, turns: Sequence[Turn]) -> Sent:
        """The job of these turns, every unit it needs applied to the mirror."""
        rows = tuple(self._row(turn) for turn in turns)
        kinds = {Task.DECODE if row.token_count == 1 and row.first_position else Task.PREFILL for row in rows}
        task = kinds.pop() if len(kinds) == 1 else Task.MIXED
        graph = choose_graph(self.session, task, rows)
        assert graph is not None, f"no graph for {task} with {len(rows)} rows"
        spec = JobSpec(next(self.jobs), self.generation, self.session.name, graph, task, Bank.PING, LONG_NS, rows)
        return spec, [turn.tokens for turn in turns]

    def _row(self, turn: Turn) -> Row:
        line, end = turn.line, turn.line.length + len(turn.tokens)
        if is_lane_board(self.session):
            line.units = (line.lane,)
        while len(line.units) * self.session.unit_tokens < end:
            line.units = (*line.units, self._free.pop(0))
        code = self.session.kv.apply(line.lane, line.units, end)
        assert code == 0, f"the mirror refused lane {line.lane} with code {code}"
        return Row(f"r{line.lane}", line.lane, line.units, line.length, len(turn.tokens), turn.logits)

    def release(self, line: Line) -> None:
        assert self.session.kv.release(line.lane) == 0
        if not is_lane_board(self.session):
            self._free = [*line.units, *self._free]
        line.units, line.length = (), 0

    def buffers(self, graph: str, bank: Bank = Bank.PING) -> HostBuffers:
        if (graph, bank) not in self._buffers:
            code, buffers = self.session.allocate(graph, bank)
            assert code == 0
            assert buffers is not None
            self._buffers[graph, bank] = buffers
        return self._buffers[graph, bank]

    def fly(self, spec: JobSpec, tokens: list[Tokens]) -> Flying:
        contract, buffers = self.session.graphs[spec.graph], self.buffers(spec.graph, spec.bank)
        fault = encode(contract, spec, tokens, buffers)
        assert fault is None, fault
        code, ticket = self.session.submit(spec, buffers)
        assert code == 0, f"submit gave code {code}"
        assert ticket is not None
        return Flying(spec, contract, buffers, ticket)

    def land(self, flying: Flying) -> list[np.ndarray | None]:
        code, status = self.session.wait(flying.ticket, LONG_NS)
        assert code == 0, f"wait gave code {code}"
        assert status is not None
        assert (status.status, status.ticket) == (StatusKind.DONE, flying.ticket)
        logits = flying.buffers.output("logits")
        index = logits_index(flying.contract, flying.spec)
        rows = [None if at is None else row_of(flying.contract, logits, at) for at in index]
        self.give_back(flying.buffers)
        return rows

    def give_back(self, buffers: HostBuffers) -> None:
        assert buffers.undo_slices() == 0
        assert buffers.reset() == 0


def is_lane_board(session: Session) -> bool:
    return any(graph.kv_layout is KvLayout.LANES for graph in session.graphs.values())


def choose_graph(session: Session, task: Task, rows: Sequence[Row]) -> str | None:
    """Smallest graph that takes these rows; fixed rows need it to reach the highest lane."""

    def fits(contract: GraphContract) -> bool:
        profile = contract.profile
        fixed = profile.row_binding is RowBinding.FIXED
        reach = max(row.lane for row in rows) + 1 if fixed else len(rows)
        return (
            task in profile.tasks
            and reach <= profile.batch
            and max(row.token_count for row in rows) <= profile.max_row_tokens
            and sum(row.token_count for row in rows) <= profile.max_job_tokens
        )

    fitting = [contract.profile for contract in session.graphs.values() if fits(contract)]
    return min(fitting, key=lambda profile: profile.batch).name if fitting else None


def row_of(contract: GraphContract, logits: np.ndarray, row: int) -> np.ndarray:
    """A copy of one row, whatever the layout the graph's metadata names."""
    if contract.logits_tile == 1:
        return logits[row].copy()
    return logits[:, row, :].reshape(-1)[: contract.vocab_size].copy()


def best(logits: np.ndarray) -> int:
    """Argmax; bfloat16 rows come as their bit patterns."""
    if logits.dtype == np.uint16:
        logits = (logits.astype(np.uint32) << 16).view(np.float32)
    return int(logits.argmax())


def is_unreadable(logits: np.ndarray) -> bool:
    """Whether a sampler that looks at this row must see that it is no result."""
    if logits.dtype == np.uint16:
        logits = (logits.astype(np.uint32) << 16).view(np.float32)
    return bool(np.isnan(logits).any())


def bits(logits: np.ndarray) -> bytes:
    return logits.tobytes()


def proves(board: Board, capability: str) -> bool:
    return board.describe().capabilities.get(capability) is Evidence.C0


def every_chip(board: Board) -> LoadOptions:
    return LoadOptions(chips=tuple(chip.chip for chip in board.describe().chips))


def configure(board: Board, package: BoardPackage, name: str = "main", generation: int = 1) -> Session:
    code, session = board.configure(package, every_chip(board), name, generation)
    assert code == 0, (code, board.health())
    assert session is not None
    return session


def prompt(package: BoardPackage, length: int, salt: int = 0) -> Tokens:
    """A prompt that is some other prompt's nowhere: ids by a formula, never an end token."""
    ids = [(7919 * (i + 1) + 104729 * (salt + 1) + i * i) % package.vocab_size for i in range(length)]
    return [(token + 1) % package.vocab_size if token in package.eos_token_ids else token for token in ids]
