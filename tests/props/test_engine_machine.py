"""The engine under random events against the naive model, with a full invariant scan after every step."""

from __future__ import annotations

from collections.abc import Callable

from budget import examples
from core_rig import EVERYTHING, fault, lane_facts, paged_facts
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from naive_board import NaiveBoard

from calserve.core.board import SessionFacts
from calserve.core.commands import Command, Configure, Exit, Release, Reset, ResetScope, Validate, Warm
from calserve.core.config import SchedulerConfig, TenantPolicy
from calserve.core.engine import Engine
from calserve.core.events import (
    BoardAnomaly,
    Cancel,
    CancelCause,
    ClientStalled,
    Configured,
    Event,
    JobDone,
    JobFailed,
    JobOverdue,
    JobSubmitted,
    KvReleased,
    Load,
    PrepareFailed,
    Released,
    ResetDone,
    RowResult,
    Shutdown,
    Submit,
    Tick,
    Unload,
    Validated,
    Warmed,
)
from calserve.core.job import JobSpec, LogitsWanted
from calserve.core.outcomes import KV_STAGE, QUEUE_STAGE, Failure, FaultClass, RowEnd
from calserve.core.states import GenerationState

MS = 1_000_000
# a mixed job, a pinned bank, a second job: so often may the same row be refused as one the board does not support
FEATURES = 3
ENDS = (*[RowEnd.NONE] * 16, *[RowEnd.EOS] * 2, RowEnd.STOP_STRING, RowEnd.UNUSABLE, RowEnd.ERROR)
Order = Validate | Configure | Warm | Release | Reset
TWO_JOBS = EVERYTHING | {"concurrent_jobs", "chip_reset"}


def _config(**changes: int) -> SchedulerConfig:
    """Small limits, so that every one is met within a short run."""
    values: dict[str, int] = dict(  # noqa: C408 - keywords read as the settings they are
        max_waiting_requests=6,
        max_waiting_prompt_tokens=300,
        deadline_default_ns=400 * MS,
        short_prefill_max_tokens=8,
        medium_prefill_max_tokens=32,
        prefill_chunk_tokens=8,
        overdue_grace_ns=30 * MS,
        recovery_drain_ns=60 * MS,
        reset_window_ns=1000 * MS,
        max_transient_retries=2,
        lifecycle_deadline_ns=0,
    )
    tenants = {"heavy": TenantPolicy(weight=4), "small": TenantPolicy(max_active_requests=1, max_waiting_requests=2)}
    return SchedulerConfig(**{**values, **changes}, tenants=tenants)


BOARDS: dict[str, Callable[[], tuple[SchedulerConfig, SessionFacts]]] = {
    "paged": lambda: (_config(), paged_facts(units=7, context=96)),
    "paged, two jobs": lambda: (_config(max_in_flight=2), paged_facts(max_in_flight=2, proven=TWO_JOBS)),
    "paged, window": lambda: (
        _config(batching_window_ns=5 * MS, lifecycle_deadline_ns=500 * MS),
        paged_facts(units=20, context=96),
    ),
    "paged, not mixed": lambda: (_config(), paged_facts(proven=EVERYTHING - {"mixed_batch"})),
    "two copies, no narrow reset": lambda: (
        _config(),
        paged_facts(units=10, context=96, proven=EVERYTHING - {"session_reset"}),
    ),
    "two copies": lambda: (_config(), paged_facts(units=10, context=96, proven=EVERYTHING | {"chip_reset"})),
    "paged, lanes isolated": lambda: (
        _config(),
        paged_facts(units=12, context=96, proven=EVERYTHING | {"lane_fault_isolation"}),
    ),
    "lanes": lambda: (_config(), lane_facts(profiles=(1, 2, 4))),
    "lanes, two jobs": lambda: (
        _config(max_in_flight=2, fixed_engine=1),
        lane_facts(max_in_flight=2, proven=TWO_JOBS - {"mixed_batch", "incremental_prefill"}),
    ),
}


class EngineMachine(RuleBasedStateMachine):
    scan = True  # off in the mutant runs: there the naive model alone must see it

    @initialize(board=st.sampled_from(sorted(BOARDS)))
    def start(self, board: str) -> None:
        self.board = board
        self.now = self.count = 0
        self.start_process()

    def start_process(self) -> None:
        config, self.facts = BOARDS[self.board]()
        self.engine = Engine(config)
        self.naive = NaiveBoard(self.facts, config.max_in_flight)
        self.orders: dict[str, Order] = {}  # lifecycle orders that are out, by session
        self.names = ["s", "s2"] if "two copies" in self.board else ["s"]
        self.writing: dict[str, int] = {}  # generations of which a job may write on, by session
        self.lost: list[JobSpec] = []  # completions that may still come, of generations that are gone
        self.exited = False
        for name in self.names:
            self.send(Load(name, "m", "p"))
            for _ in range(3):
                self.answer(name)

    # --- plumbing ---------------------------------------------------------------------------------------

    def send(self, event: Event) -> None:
        commands = self.engine.handle(event, self.now)
        for command in commands:
            if isinstance(command, Order):
                assert command.session not in self.orders, "two lifecycle orders at once"
                self.orders[command.session] = command
                if isinstance(command, Release):
                    jobs = self.naive.jobs.values()
                    assert command.session not in {spec.session for spec in jobs}, "released under a job"
                self.check_writing(command)
                if isinstance(command, Reset):
                    self.lose_jobs(None if self.is_wide(command) else command.session)
        self.naive.hear(commands)
        if self.has_exit(commands):
            self.exited = True
            self.lose_jobs(None)
        if self.scan:
            self.engine.check_invariants()

    def check_writing(self, command: Order) -> None:
        """A job that may write on: of its generation nothing is released, and only a chip reset takes it down."""
        if isinstance(command, Release):
            assert self.writing.get(command.session) != command.generation, "released under a lost job"
        elif isinstance(command, Reset):
            mine = self.writing.get(command.session) == command.generation
            assert not mine or command.scope is ResetScope.CHIP, "a lost job is not ended by this reset"
            assert not self.is_wide(command) or not self.writing, "a sibling's lost job writes on"

    def has_exit(self, commands: list[Command]) -> bool:
        return any(isinstance(command, Exit) for command in commands)

    def is_wide(self, order: Reset) -> bool:
        return order.scope is ResetScope.CONFIGURATION

    def lose_jobs(self, session: str | None) -> None:
        """What was on the device of that session (None: of any) never came back."""
        for spec in list(self.naive.jobs.values()):
            if session in (None, spec.session):
                self.lost.append(spec)
                self.naive.fence(spec)
                del self.naive.jobs[spec.job]

    def answer(self, session: str, failure: Failure | None = None) -> None:
        order = self.orders.pop(session)
        bad = failure is not None
        match order:
            case Validate(session, generation):
                self.send(Validated(session, generation, failure))
            case Configure(session, generation):
                self.send(Configured(session, generation, None if bad else self.facts, failure))
            case Warm(session, generation):
                self.send(Warmed(session, generation, (), failure))
            case Release(session, generation):
                if not bad:  # a rebuild, perhaps: whoever waits holds nothing any more
                    self.naive.forget_restarts(generation)
                self.send(Released(session, generation, failure))
            case Reset(session, generation):
                self.naive.forget_restarts(None if self.is_wide(order) else generation)
                if not bad:
                    self.writing.pop(session, None)
                self.send(ResetDone(session, generation, failure))

    def pick(self, index: int) -> JobSpec:
        specs = list(self.naive.jobs.values())
        return specs[index % len(specs)]

    def job_done(self, spec: JobSpec, ends: list[RowEnd]) -> None:
        rows = tuple(
            RowResult(RowEnd.NONE, 0)
            if row.logits is LogitsWanted.NONE
            else RowResult(end, int(end not in (RowEnd.ERROR, RowEnd.UNUSABLE)))
            for row, end in zip(spec.rows, ends, strict=True)
        )
        self.naive.done(spec, tuple(row.end for row in rows))
        self.send(JobDone(spec.job, spec.generation, rows))

    def down(self) -> list[str]:
        views = self.engine.snapshot(self.now).sessions
        return [view.session for view in views if view.state in (GenerationState.FAILED, GenerationState.UNLOADED)]

    # --- rules ------------------------------------------------------------------------------------------

    @rule(
        prompt=st.sampled_from([0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 40, 63, 64, 95, 300]),
        new=st.sampled_from([None, 0, 1, 2, 3, 5, 20]),
        tenant=st.sampled_from(["heavy", "light", "small"]),
        deadline=st.sampled_from([None, None, None, 0, 20, 60]),
        model=st.sampled_from(["m", "m", "m", "m", "other"]),
        whole=st.booleans(),
    )
    def submit_one(
        self, prompt: int, new: int | None, tenant: str, deadline: int | None, model: str, whole: bool
    ) -> None:
        self.submit(prompt, new, tenant, deadline, model, whole=whole)

    def submit(
        self, prompt: int, new: int | None, tenant: str, deadline: int | None, model: str, *, whole: bool = False
    ) -> None:
        self.count += 1
        name = f"r{self.count}"
        due = None if deadline is None else self.now + deadline * MS
        self.naive.submit(name, prompt, new, is_whole=whole)
        self.send(Submit(name, tenant, model, prompt, new, self.now, due, whole))

    @rule(count=st.integers(2, 6), prompt=st.integers(1, 60), new=st.integers(1, 30))
    def submit_many(self, count: int, prompt: int, new: int) -> None:
        for i in range(count):
            self.submit(prompt + i, new, ("heavy", "light")[i % 2], None, "m", whole=i % 3 == 2)

    @rule(index=st.integers(0, 30))
    def submit_again(self, index: int) -> None:
        if self.naive.live:
            name = list(self.naive.live)[index % len(self.naive.live)]
            self.send(Submit(name, "light", "m", 5, 5, self.now))

    @rule(index=st.integers(0, 30), stalled=st.booleans())
    def cancel(self, index: int, stalled: bool) -> None:
        names = [*self.naive.live, *self.naive.ended, "nobody"]
        name = names[index % len(names)]
        self.send(ClientStalled(name) if stalled else Cancel(name, CancelCause.CLIENT_GONE))

    @precondition(lambda self: self.naive.jobs)
    @rule(index=st.integers(0, 3), data=st.data(), told=st.booleans())
    def come_back(self, index: int, data: st.DataObject, told: bool) -> None:
        spec = self.pick(index)
        self.now += 12 * MS
        if told:
            self.send(JobSubmitted(spec.job, spec.generation))
        if spec.job in self.naive.jobs:
            size = len(spec.rows)
            self.job_done(spec, data.draw(st.lists(st.sampled_from(ENDS), min_size=size, max_size=size)))

    @rule(steps=st.integers(1, 8), stops=st.sampled_from([-1, -1, -1, 0, 1]))
    def serve(self, steps: int, stops: int) -> None:
        """Several good steps in a row: without them most requests would never get far. stops: the row that ends."""
        for _ in range(steps):
            if self.exited:
                self.check_all_told()
                self.start_process()
            elif self.orders:
                self.now += 3 * MS
                self.answer(next(iter(self.orders)))
            elif self.down():
                self.send(Load(self.down()[0], "m", "p"))
            elif self.naive.jobs:
                self.now += 9 * MS
                spec = self.pick(0)
                ends = [RowEnd.EOS if index == stops else RowEnd.NONE for index in range(len(spec.rows))]
                self.job_done(spec, ends)

    @precondition(lambda self: self.naive.jobs)
    @rule(
        index=st.integers(0, 3),
        kind=st.sampled_from([*FaultClass, *[FaultClass.TRANSIENT] * 6, *[FaultClass.DEVICE] * 3]),
        has_ended=st.sampled_from([True, True, True, True, False]),
    )
    def fail(self, index: int, kind: FaultClass, has_ended: bool) -> None:
        spec = self.pick(index)
        self.naive.failed(spec)
        if not has_ended:
            self.writing[spec.session] = spec.generation
            self.naive.doubted.add(spec.session)
            self.lost.append(spec)
        self.send(JobFailed(spec.job, spec.generation, fault(kind), has_ended))

    @precondition(lambda self: self.naive.jobs)
    @rule(
        kind=st.sampled_from([*FaultClass, *[FaultClass.TRANSIENT] * 12]),
        stage=st.sampled_from([KV_STAGE, "submit", QUEUE_STAGE]),
    )
    def refuse(self, kind: FaultClass, stage: str) -> None:
        spec = self.pick(-1)
        self.naive.unstarted(spec)
        self.send(PrepareFailed(spec.job, spec.generation, fault(kind, stage)))

    @precondition(lambda self: self.naive.jobs)
    @rule(index=st.integers(0, 3), recovers=st.booleans())
    def count_wrong(self, index: int, recovers: bool) -> None:
        """The board's own account does not close: from here one job at a time, also in the generations that recover
        from something, until the package is loaded anew. There is work for two jobs, or nothing would show."""
        spec = self.pick(index)
        self.naive.doubted.add(spec.session)
        self.send(BoardAnomaly(spec.session, spec.generation, "left 1, pending 0"))
        if recovers:
            self.fail(index, FaultClass.DEVICE, has_ended=True)
            self.serve(steps=6, stops=-1)
        for _ in range(3):
            self.submit_many(count=2, prompt=5, new=5)
            self.serve(steps=1, stops=-1)

    @precondition(lambda self: self.naive.jobs)
    @rule(kind=st.sampled_from([*FaultClass, *[FaultClass.TRANSIENT] * 4]), kv=st.booleans())
    def refuse_on_and_on(self, kind: FaultClass, kv: bool) -> None:
        """The same refusal at one instant: whatever the class, no row goes out again and again."""
        session = self.pick(-1).session
        refused: dict[str, int] = {}
        for refusal in range(100):
            mine = [spec for spec in self.naive.jobs.values() if spec.session == session]
            if not mine:
                return
            self.naive.unstarted(mine[-1])
            self.send(PrepareFailed(mine[-1].job, mine[-1].generation, fault(kind, "kv" if kv else "submit")))
            new = [spec for spec in self.naive.jobs.values() if spec.session == session and spec not in mine]
            if kind in (FaultClass.REQUEST, FaultClass.PROGRAMMING):
                most = FEATURES if kind is FaultClass.PROGRAMMING else 0
                for row in mine[-1].rows:
                    refused[row.request] = refused.get(row.request, 0) + 1
                again = [refused.get(row.request, 0) for spec in new for row in spec.rows]
                assert max(again, default=0) <= most, "refused and submitted again"
            else:
                assert not new or refusal == 0, "the same refusal twice, and a job again"
        raise AssertionError("it never came to rest")

    @precondition(lambda self: self.naive.jobs)
    @rule(index=st.integers(0, 3), returns=st.sampled_from([True, True, True, False]))
    def be_late(self, index: int, returns: bool) -> None:
        spec = self.pick(index)
        self.send(JobOverdue(spec.job, spec.generation))
        if returns and spec.job in self.naive.jobs:
            self.now += 20 * MS
            self.job_done(spec, [RowEnd.NONE] * len(spec.rows))

    @rule(index=st.integers(0, 3), job=st.integers(0, 50), generation=st.integers(0, 5))
    def say_something_stale(self, index: int, job: int, generation: int) -> None:
        if any(spec.job == job and spec.generation == generation for spec in self.naive.jobs.values()):
            return
        self.send(JobDone(job, generation, (RowResult(RowEnd.NONE, 1),)))
        self.send(Warmed("s", generation + 100))
        for spec in list(self.naive.jobs.values())[:1]:
            rows = tuple(RowResult(RowEnd.EOS, 1) for _ in spec.rows)
            self.send(JobDone(spec.job, spec.generation + 1 + generation, rows))
        if self.lost:
            old = self.lost[index % len(self.lost)]
            self.send(JobFailed(old.job, old.generation, fault(FaultClass.UNKNOWN)))
        self.send(KvReleased("s"))

    @rule(ms=st.sampled_from([0, 1, 5, 20, 70]))
    def wait(self, ms: int) -> None:
        self.now += ms * MS
        self.send(Tick())

    @rule()
    def wait_for_the_next_deadline(self) -> None:
        due = self.engine.next_deadline_ns()
        if due is not None:
            self.now = max(self.now, due)
            self.send(Tick())
            after = self.engine.next_deadline_ns()
            assert after is None or after > self.now, "a timer that its own tick does not end"

    @precondition(lambda self: self.orders)
    @rule(index=st.integers(0, 1), kind=st.sampled_from([*[None] * 24, *FaultClass]))
    def answer_lifecycle(self, index: int, kind: FaultClass | None) -> None:
        self.now += 3 * MS
        failure = fault(kind, "lifecycle") if kind is not None else None
        self.answer(list(self.orders)[index % len(self.orders)], failure)

    @rule(package=st.sampled_from(["p", "q"]), index=st.integers(0, 1))
    def load(self, package: str, index: int) -> None:
        self.send(Load(self.names[index % len(self.names)], "m", package))

    @rule(ms=st.sampled_from([0, 30]), what=st.integers(0, 15))
    def unload(self, ms: int, what: int) -> None:
        if what < 4:
            self.send(Shutdown(self.now + ms * MS) if what == 0 else Unload("s", self.now + ms * MS))

    # --- the end ----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Whatever happened: a shutdown ends by its deadline and grace, and everyone was told once."""
        if not hasattr(self, "engine"):
            return
        if not self.exited:
            self.send(Shutdown(self.now + 50 * MS))
        for _ in range(200):
            if self.exited:
                break
            if self.orders:
                self.answer(next(iter(self.orders)))
            elif self.naive.jobs:
                self.now += MS
                spec = self.pick(0)
                self.job_done(spec, [RowEnd.NONE] * len(spec.rows))
            else:
                self.wait_for_the_next_deadline()
        assert self.exited, "the shutdown never ended"
        self.check_all_told()

    def check_all_told(self) -> None:
        assert not self.naive.live, f"never told: {list(self.naive.live)}"
        assert len(self.naive.ended) == self.naive.submitted


EngineMachine.TestCase.settings = settings(
    max_examples=examples(250),
    stateful_step_count=45,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestEngineMachine = EngineMachine.TestCase
