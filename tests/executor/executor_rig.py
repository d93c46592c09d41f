"""The production core and executor steps, run synchronously over any board: no thread, one step at a time."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from calserve.core.config import SchedulerConfig
from calserve.core.engine import Engine
from calserve.core.events import Cancel, CancelCause, Event, JobOverdue, Load, Submit
from calserve.core.outcomes import FinishReason
from calserve.core.snapshot import SessionView
from calserve.core.states import GenerationState
from calserve.executor.audit import BoardAudit
from calserve.executor.completion import Stray, SubmittedJob, completion_step
from calserve.executor.engine_step import EngineSteps, Ways
from calserve.executor.lifecycle import LifecycleOrder, LifecycleSteps, drive
from calserve.executor.messages import Delivery, Ending, Submission
from calserve.executor.sequence import GenerationParams, Sequence
from calserve.runtime.contract import Board, BoardPackage, LoadOptions
from calserve.sampling.params import SamplingParams
from calserve.text.tokenizer import Tokenizer

WAIT_NS = 60_000_000_000


def byte_tokenizer(size: int) -> Tokenizer:
    """`size` tokens, each one printable ASCII character: text and tokens can be compared by eye."""
    vocab = {chr(33 + i): i for i in range(size)}
    model = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    return Tokenizer(json.dumps(model))


@dataclass(slots=True)
class Collected:
    """What one request was told."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    ending: Ending | None = None
    terminals: int = 0


@dataclass(slots=True)
class CollectingOutlet:
    told: dict[str, Collected] = field(default_factory=dict)
    sessions: tuple[SessionView, ...] = ()
    exits: list[tuple[int, str]] = field(default_factory=list)

    def deliver(self, batch: Many[Delivery | Ending]) -> None:
        for item in batch:
            told = self.told.setdefault(item.request, Collected())
            if isinstance(item, Ending):
                told.ending = item
                told.terminals += 1
            else:
                assert told.ending is None, f"{item.request} got text after its end"
                told.tokens += item.tokens
                told.text += item.text

    def sessions_changed(self, sessions: Many[SessionView]) -> None:
        self.sessions = tuple(sessions)

    def exit(self, code: int, reason: str) -> None:
        self.exits.append((code, reason))


class ExecutorRig:
    """Owns what the threads own, and calls the steps in the order a single-threaded world would."""

    def __init__(
        self,
        board: Board,
        package: BoardPackage,
        clock: Callable[[], int],
        tokenizer: Tokenizer,
        config: SchedulerConfig | None = None,
        sessions: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """sessions: the chips of each; without it one session `s0` on all of them."""
        self.board, self.package, self.tokenizer, self.clock = board, package, tokenizer, clock
        self.outlet = CollectingOutlet()
        self.jobs: deque[SubmittedJob] = deque()
        self.orders: deque[LifecycleOrder] = deque()
        self.specs: list[SubmittedJob] = []
        self.overdue: list[SubmittedJob] = []  # still owned by the device
        self.config = config or SchedulerConfig()
        self.engine = Engine(self.config)
        self.generations: set[tuple[str, int]] = set()  # that have a completion thread
        ways = Ways(self._keep_job, self._open, self._close, self.orders.append)
        self.events: list[Event] = []  # everything that reached core
        self.steps = EngineSteps(
            self.engine,
            self.outlet,
            ways,
            clock,
            (lambda _now, event, _commands: self.events.append(event),),
            jobs_kept=self.config.max_in_flight,
            audit=BoardAudit(board),
        )
        sessions = sessions or {"s0": tuple(chip.chip for chip in board.describe().chips)}
        options = {
            name: LoadOptions(chips, max_in_flight=self.config.max_in_flight) for name, chips in sessions.items()
        }
        self.sessions = tuple(sessions)
        self.lifecycle = LifecycleSteps(board, lambda _hash: package, options, clock)

    def _open(self, session: str, generation: int) -> None:
        self.generations.add((session, generation))

    def _close(self, session: str, generation: int) -> None:
        self.generations.remove((session, generation))

    def _keep_job(self, job: SubmittedJob) -> None:
        assert (job.spec.session, job.spec.generation) in self.generations
        self.jobs.append(job)
        self.specs.append(job)

    def load(self) -> None:
        for name in self.sessions:
            self.steps.take(Load(name, "m", self.package.hash))
        self.settle()
        states = [view.state for view in self.engine.snapshot(self.clock()).sessions]
        assert states == [GenerationState.READY] * len(self.sessions), (states, self.outlet.sessions)

    def submit(
        self,
        request: str,
        prompt: Many[int],
        new_tokens: int,
        sampling: SamplingParams | None = None,
        **params: object,
    ) -> None:
        sampling = sampling or SamplingParams(temperature=0.0)
        generation = GenerationParams(
            sampling, new_tokens, self.package.vocab_size, **{"min_tokens": new_tokens, **params}
        )
        event = Submit(request, "default", "m", len(prompt), new_tokens, self.clock())
        self.steps.take(Submission(event, Sequence(request, prompt, generation, self.tokenizer)))

    def cancel(self, request: str) -> None:
        self.steps.take(Cancel(request, CancelCause.CLIENT_GONE))

    def post(self, event: Event) -> None:
        self.steps.take(event)

    def retire_one(self) -> None:
        """Wait for the oldest job and bring it home."""
        job = self.jobs.popleft()
        while True:
            code, status = job.session.wait(job.ticket, WAIT_NS)
            outcome = completion_step(job, code, status, self.clock())
            if isinstance(outcome, JobOverdue):
                self.overdue.append(job)
            self.steps.take(outcome.event if isinstance(outcome, Stray) else outcome)
            if not isinstance(outcome, Stray):
                return

    def run_order(self) -> None:
        """The oldest lifecycle order, to its end."""
        self.steps.take(drive(self.lifecycle.take(self.orders.popleft())))

    def settle(self) -> None:
        """Run until nothing is in flight and no order waits."""
        self.steps.check_ports(self.generations)
        while self.jobs or self.orders:
            if self.orders:
                self.run_order()
            else:
                self.retire_one()
        self.steps.check_ports(self.generations)

    def run(self, prompts: Many[Many[int]], new_tokens: int, **params: object) -> list[list[int]]:
        """All at once; the tokens each request was given."""
        names = [f"r{len(self.outlet.told)}-{i}" for i in range(len(prompts))]
        for name, prompt in zip(names, prompts, strict=True):
            self.submit(name, prompt, new_tokens, **params)  # type: ignore[arg-type]
        self.settle()
        return [self.outlet.told[name].tokens for name in names]

    def assert_nothing_held(self) -> None:
        """Lanes, units, buffers and sequences are all back."""
        self.engine.check_invariants()
        for view in self.engine.snapshot(self.clock()).sessions:
            assert view.kv_units_held == 0, view
            assert view.kv_units_reserved == 0, view
            assert view.running_requests == view.waiting_requests == view.jobs_in_flight == 0, view
        assert all(port.pool.leased == 0 for port in self.steps.ports.values())
        assert not self.steps.sequences
        assert not self.steps.lent
        assert not self.steps.endings.ports
        for port in self.steps.ports.values():
            assert port.session.kv.can_allocate(port.session.kv_units)

    def endings(self) -> dict[str, FinishReason]:
        return {name: told.ending.reason for name, told in self.outlet.told.items() if told.ending}
