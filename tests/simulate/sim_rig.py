"""Drives a board straight through the contract: rows in, greedy tokens out. No core, no executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.runtime.contract import HostBuffers, JobStatus, LoadOptions, Session, StatusKind, Ticket
from calserve.runtime.encoding import encode, logits_index
from calserve.runtime.sim import PROFILES, FaultPlan, SimBoard, SimDevice, SimProfile, VirtualClock, sim_package

LANES = PROFILES["assumed-lanes"]
SMALL = replace(LANES, context=128)
SECOND = 1_000_000_000


def prompt_of(length: int, salt: int = 0, vocab: int = 64) -> list[int]:
    """A fixed prompt; different salts differ from the first token on."""
    return [(5 * i + 11 * salt + 2) % vocab for i in range(length)]


@dataclass
class Rig:
    """One session on one board. Every job is checked to succeed unless it goes through `start`."""

    profile: SimProfile = SMALL
    board: SimBoard = field(init=False)
    session: Session = field(init=False)
    jobs: int = 0

    @classmethod
    def on(
        cls,
        profile: SimProfile = SMALL,
        clock: VirtualClock | None = None,
        faults: FaultPlan | None = None,
        device: SimDevice | None = None,
        max_in_flight: int = 1,
        generation: int = 1,
    ) -> Rig:
        rig = cls(profile)
        rig.board = SimBoard(device=device) if device else SimBoard(profile, clock=clock, faults=faults)
        rig.configure(generation, max_in_flight)
        return rig

    def configure(self, generation: int, max_in_flight: int = 1) -> None:
        chips = (0, 1) if self.profile.session_chips == (2,) else (0,)
        options = LoadOptions(chips=chips, max_in_flight=max_in_flight)
        code, session = self.board.configure(sim_package(self.profile), options, "s", generation)
        assert code == 0, code
        self.session = session
        self.generation = generation

    def spec(self, graph: str, rows: Sequence[Row], bank: Bank = Bank.AUTO) -> JobSpec:
        self.jobs += 1
        task = Task.PREFILL if graph.startswith("prefill") else Task.DECODE
        return JobSpec(self.jobs, self.generation, "s", graph, task, bank, 0, tuple(rows))

    def buffers(self, spec: JobSpec, tokens: Sequence[Sequence[int]]) -> HostBuffers:
        code, buffers = self.session.allocate(spec.graph, spec.bank)
        assert code == 0, code
        assert encode(self.session.graphs[spec.graph], spec, tokens, buffers) is None
        return buffers

    def start(self, spec: JobSpec, tokens: Sequence[Sequence[int]]) -> tuple[Ticket, HostBuffers]:
        buffers = self.buffers(spec, tokens)
        code, ticket = self.session.submit(spec, buffers)
        assert code == 0, code
        return ticket, buffers

    def finish(self, ticket: Ticket) -> JobStatus:
        code, status = self.session.wait(ticket, 100 * SECOND)
        assert code == 0, code
        assert status.status is StatusKind.DONE
        assert status.ticket == ticket
        return status

    def best(self, spec: JobSpec, buffers: HostBuffers) -> list[int]:
        contract = self.session.graphs[spec.graph]
        logits = buffers.output("logits")
        return [
            int(np.argmax(row_values(logits, i, contract.logits_tile, contract.vocab_size)))
            for i in logits_index(contract, spec)
        ]

    def run(self, graph: str, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> list[int]:
        spec = self.spec(graph, rows)
        ticket, buffers = self.start(spec, tokens)
        self.finish(ticket)
        return self.best(spec, buffers)

    def prefill(self, lane: int, tokens: Sequence[int], first: int = 0) -> int:
        return self.run("prefill_b1", [row_of(lane, first, len(tokens))], [tokens])[0]

    def decode(self, batch: int, steps: dict[int, tuple[int, int]]) -> dict[int, int]:
        """steps: lane -> (token, position). Returns the next token of each lane."""
        rows = [row_of(lane, position, 1) for lane, (_, position) in steps.items()]
        tokens = [[token] for token, _ in steps.values()]
        return dict(zip(steps, self.run(f"decode_b{batch}", rows, tokens), strict=True))

    def generate(self, prompt: Sequence[int], n: int, lane: int = 0, batch: int = 4) -> list[int]:
        output = [self.prefill(lane, prompt)]
        while len(output) < n:
            position = len(prompt) + len(output) - 1
            output.append(self.decode(batch, {lane: (output[-1], position)})[lane])
        return output


def row_of(lane: int, first: int, count: int) -> Row:
    return Row(f"r{lane}", lane, (lane,), first, count, LogitsWanted.LAST)


def row_values(logits: np.ndarray, row: int, tile: int, vocab: int) -> np.ndarray:
    """One row of either layout, as the device left it, without what stands beyond the vocabulary."""
    return logits[row] if tile == 1 else np.array([logits[v // tile, row, v % tile] for v in range(vocab)])
