"""An Engine driven by hand: literal times, boards described by their facts, and a record of what it ordered.

The rig knows nothing of the engine's inside: it keeps the jobs that were ordered and answers for the board.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from calserve.core.board import GraphProfile, RowBinding, SessionFacts, StepTime
from calserve.core.commands import Command, Configure, Emit, Exit, Finish, Release, Reset, SubmitJob, Validate, Warm
from calserve.core.config import SchedulerConfig
from calserve.core.engine import Engine
from calserve.core.events import (
    Configured,
    Event,
    JobDone,
    JobFailed,
    JobSubmitted,
    Load,
    PrepareFailed,
    Released,
    ResetDone,
    RowResult,
    Submit,
    Tick,
    Validated,
    Warmed,
)
from calserve.core.job import JobSpec, LogitsWanted, Task
from calserve.core.outcomes import Failure, FaultClass, RowEnd
from calserve.core.snapshot import SessionView

MS = 1_000_000
PREFILL, DECODE, MIXED = Task.PREFILL, Task.DECODE, Task.MIXED
EVERYTHING = frozenset({"batch_lanes", "incremental_prefill", "mixed_batch", "session_reset", "resident_profiles"})


def paged_facts(
    lanes: int = 4,
    units: int = 64,
    unit_tokens: int = 16,
    context: int = 256,
    job_tokens: int = 64,
    proven: frozenset[str] = EVERYTHING,
    max_in_flight: int = 1,
) -> SessionFacts:
    """One graph that does everything with up to `lanes` rows; KV in blocks."""
    graph = GraphProfile(
        name="all",
        tasks=frozenset({PREFILL, DECODE, MIXED}),
        batch=lanes,
        batch_is_fixed=False,
        row_binding=RowBinding.FREE,
        max_tokens=context,
        max_row_tokens=job_tokens,
        max_job_tokens=job_tokens,
        min_chunk_tokens=2,
    )
    times = (StepTime("all", ((1, 10 * MS), (lanes, 20 * MS)), 5 * MS, MS // 2),)
    return SessionFacts("s", (graph,), proven, lanes, unit_tokens, units, False, max_in_flight, times)


def lane_facts(
    profiles: tuple[int, ...] = (1, 4),
    lanes: int = 4,
    context: int = 64,
    row_tokens: int = 64,
    proven: frozenset[str] = EVERYTHING - {"mixed_batch", "incremental_prefill"},
    decode_ms: tuple[int, ...] = (),
    max_in_flight: int = 1,
) -> SessionFacts:
    """Fixed decode graphs whose rows are the lanes, one prefill graph that reaches any lane; a unit is a lane."""

    def graph(name: str, task: Task, batch: int, binding: RowBinding, tokens: int) -> GraphProfile:
        return GraphProfile(name, frozenset({task}), batch, True, binding, context, tokens, tokens * batch, 1)

    decode = [graph(f"decode_b{n}", DECODE, n, RowBinding.FIXED, 1) for n in profiles]
    prefill = graph("prefill", PREFILL, 1, RowBinding.FREE, row_tokens)
    ms = decode_ms or tuple(8 + 2 * n for n in profiles)
    times = [StepTime(g.name, ((g.batch, t * MS),)) for g, t in zip(decode, ms, strict=True)]
    times.append(StepTime("prefill", (), 2 * MS, MS))
    return SessionFacts("s", (*decode, prefill), proven, lanes, context, lanes, True, max_in_flight, tuple(times))


def fault(kind: FaultClass, stage: str = "wait", code: int = 0) -> Failure:
    return Failure(stage, code, kind)


@dataclass
class Rig:
    """`now` moves only when a test moves it. Every `send` is followed by a full invariant check."""

    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    facts: SessionFacts = field(default_factory=paged_facts)
    now: int = 0
    check: bool = True

    def __post_init__(self) -> None:
        self.engine = Engine(self.config)
        self.jobs: dict[int, JobSpec] = {}  # ordered and not retired
        self.finished: dict[str, Finish] = {}
        self.emitted: list[Emit] = []
        self.orders: list[Command] = []  # every command but jobs, emits and ends

    # what goes in

    def send(self, event: Event) -> list[Command]:
        commands = self.engine.handle(event, self.now)
        for command in commands:
            match command:
                case SubmitJob():
                    self.jobs[command.spec.job] = command.spec
                case Finish():
                    assert command.request not in self.finished, f"{command.request} ended twice"
                    self.finished[command.request] = command
                case Emit():
                    self.emitted.append(command)
                case _:
                    self.orders.append(command)
        if self.check:
            self.engine.check_invariants()
        return commands

    def at(self, now: int) -> Rig:
        self.now = now
        return self

    def tick(self, now: int) -> list[Command]:
        return self.at(now).send(Tick())

    def up(self, session: str = "s", model: str = "m", package: str = "p") -> Rig:
        """Load through Ready, answering every lifecycle order with success."""
        self.lifecycle(self.send(Load(session, model, package)))
        return self

    def lifecycle(self, commands: list[Command], facts: SessionFacts | None = None) -> list[Command]:
        """Answer lifecycle orders with success until none is left; returns the last answer's commands."""
        last = commands
        while True:
            order = next((c for c in last if isinstance(c, Validate | Configure | Warm | Release | Reset)), None)
            if order is None:
                return last
            last = self.send(self.answer(order, facts))

    def answer(self, order: Command, facts: SessionFacts | None = None) -> Event:
        match order:
            case Validate(session, generation):
                return Validated(session, generation)
            case Configure(session, generation):
                return Configured(session, generation, facts or self.facts)
            case Warm(session, generation):
                return Warmed(session, generation)
            case Release(session, generation):
                return Released(session, generation)
            case Reset(session, generation):
                return ResetDone(session, generation)
            case _:
                raise AssertionError(order)

    def submit(
        self,
        name: str,
        prompt: int = 8,
        new: int | None = 4,
        tenant: str = "t",
        deadline: int | None = None,
        model: str = "m",
    ) -> list[Command]:
        return self.send(Submit(name, tenant, model, prompt, new, self.now, deadline))

    def done(self, job: int | None = None, ends: Mapping[str, RowEnd] | None = None) -> list[Command]:
        """The oldest job (or that one) comes back good; `ends` by request name."""
        spec = self.jobs.pop(job or min(self.jobs))
        self.send(JobSubmitted(spec.job, spec.generation))
        return self.send(JobDone(spec.job, spec.generation, results(spec, ends)))

    def failed(self, kind: FaultClass, job: int | None = None, *, has_ended: bool = True) -> list[Command]:
        spec = self.jobs.pop(job or min(self.jobs))
        return self.send(JobFailed(spec.job, spec.generation, fault(kind), has_ended))

    def unprepared(self, kind: FaultClass, stage: str = "submit") -> list[Command]:
        spec = self.jobs.pop(min(self.jobs))
        return self.send(PrepareFailed(spec.job, spec.generation, fault(kind, stage)))

    # what is there

    @property
    def spec(self) -> JobSpec:
        """The one job in flight."""
        (spec,) = self.jobs.values()
        return spec

    @property
    def rows(self) -> list[str]:
        return [row.request for row in self.spec.rows]

    @property
    def view(self) -> SessionView:
        return self.engine.snapshot(self.now).sessions[0]

    @property
    def counters(self) -> Mapping[str, int]:
        return self.engine.snapshot(self.now).counters

    @property
    def exit(self) -> Exit | None:
        return next((c for c in self.orders if isinstance(c, Exit)), None)

    def reason(self, name: str) -> str:
        return self.finished[name].reason.value

    def refusal(self, name: str) -> tuple[str, int, int]:
        refusal = self.finished[name].refusal
        assert refusal is not None
        return refusal.kind.value, refusal.limit, refusal.given


def results(spec: JobSpec, ends: Mapping[str, RowEnd] | None = None) -> tuple[RowResult, ...]:
    """One token for every row that has logits."""
    ends = ends or {}
    return tuple(
        RowResult(ends.get(row.request, RowEnd.NONE), 0 if row.logits is LogitsWanted.NONE else 1) for row in spec.rows
    )


def submits(commands: list[Command]) -> list[JobSpec]:
    return [c.spec for c in commands if isinstance(c, SubmitJob)]
