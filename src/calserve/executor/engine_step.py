"""The engine step: one message in, `core`'s orders carried out.

Runs on the engine thread, which alone holds the engine, the buffer pools and every sequence that is not in a
job. A turn: the message's fact goes to `core`; lanes it freed are released on the device; its jobs are
prepared and submitted at once; only then are clients told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from calserve.core.commands import (
    Command,
    Configure,
    Emit,
    Exit,
    Finish,
    Release,
    ReleaseLane,
    Reset,
    SubmitJob,
    Validate,
    Warm,
)
from calserve.core.engine import Engine
from calserve.core.events import Event, JobFailed, JobSubmitted, KvReleased, PrepareFailed
from calserve.core.job import JobSpec, Row
from calserve.core.outcomes import KV_STAGE, Failure, FaultClass
from calserve.core.states import BufferEvent, GenerationState
from calserve.executor.clock import Clock
from calserve.executor.completion import Completed, SubmittedJob
from calserve.executor.lifecycle import LifecycleDone, LifecycleOrder
from calserve.executor.messages import Delivery, Ending, Inspect, Outlet, Recorder, Submission
from calserve.executor.pool import BufferPool, Lease, PoolKey
from calserve.executor.prepare import check_job
from calserve.executor.sequence import Origin, Sequence
from calserve.runtime.contract import Session
from calserve.runtime.encoding import encode
from calserve.runtime.errors import CalCode, failure

Message = Submission | Completed | LifecycleDone | Inspect | Event


@dataclass(slots=True)
class SessionPort:
    """What the engine thread holds of one warm session."""

    session: Session
    generation: int
    pool: BufferPool
    last_ended_ns: int = 0
    held: set[int] = field(default_factory=set)  # lanes the device holds KV for


@dataclass(frozen=True, slots=True)
class Ways:
    """Where orders go: to the completion thread of a session's generation, to the lifecycle thread.

    A generation has a completion thread of its own, opened when its session is adopted and closed when the session
    goes: one that still waits for a job that never came back must not stand in the way of the next generation's.
    """

    to_completion: Callable[[SubmittedJob], None]
    open_completion: Callable[[str, int], None]
    close_completion: Callable[[str, int], None]
    to_lifecycle: Callable[[LifecycleOrder], None]


@dataclass(slots=True)
class EngineSteps:
    """Invariants: a sequence is in `sequences`, in a job, or dropped; a lease is in a pool, in a job, or
    quarantined. Called on the engine thread only.
    """

    engine: Engine
    outlet: Outlet
    ways: Ways
    clock: Clock
    recorders: Many[Recorder] = ()
    jobs_kept: int = 1  # buffers per pool key: as many as jobs in flight
    ports: dict[str, SessionPort] = field(default_factory=dict)
    sequences: dict[str, Sequence | None] = field(default_factory=dict)  # None: in a job
    origins: dict[str, Origin] = field(default_factory=dict)  # to start over when a job never came back
    told: tuple[tuple[str, int, GenerationState], ...] = ()  # session states, as the outlet knows them
    kv_blocked: set[str] = field(default_factory=set)  # sessions whose board said it has no KV to give yet

    def take(self, message: Message) -> None:
        """One message to its end."""
        match message:
            case Submission():
                self.sequences[message.event.request] = message.sequence
                self.origins[message.event.request] = message.sequence.origin
                self._turn(message.event, {})
            case Completed():
                self._turn(message.event, self._retire(message))
            case LifecycleDone():
                self._adopt(message)
                self._turn(message.event, {})
            case Inspect():
                message.reply(self.engine.snapshot(self.clock()))
            case _:
                self._turn(message, {})

    def wait_timeout_ns(self) -> int | None:
        """How long the inbox may be waited on before `core` wants a Tick; None for ever."""
        due = self.engine.next_deadline_ns()
        return None if due is None else max(0, due - self.clock())

    def _turn(self, event: Event, said: dict[tuple[int, int], Delivery]) -> None:
        later: list[Command] = []
        facts: deque[Event] = deque((event,))
        while facts:
            fact = facts.popleft()
            now = self.clock()
            commands = self.engine.handle(fact, now)
            for record in self.recorders:
                record(now, fact, commands)
            for command in commands:
                if isinstance(command, SubmitJob):
                    facts.append(self._submit(command.spec))
                elif isinstance(command, ReleaseLane):
                    self._release_lane(command, facts)
                else:
                    later.append(command)
        self._tell(later, said)
        for port in self.ports.values():
            port.last_ended_ns = 0  # the board's idle time counts only where work followed at once

    def _tell(self, commands: list[Command], said: dict[tuple[int, int], Delivery]) -> None:
        """Clients, the lifecycle thread, whoever watches the sessions; an Exit last of all."""
        batch: list[Delivery | Ending] = []
        ends: list[Exit] = []
        for command in commands:
            match command:
                case Emit():
                    delivery = said.get((command.job, command.row))
                    if delivery is not None:
                        batch.append(delivery)
                case Finish():
                    self.sequences.pop(command.request, None)
                    self.origins.pop(command.request, None)
                    batch.append(
                        Ending(command.request, command.reason, command.usage, command.refusal, command.failure)
                    )
                case Exit():
                    ends.append(command)
                case _:
                    self._order(command)
        if batch:
            self.outlet.deliver(batch)
        states = self.engine.session_states()
        if states != self.told:
            self.told = states
            self.outlet.sessions_changed(self.engine.snapshot(self.clock()).sessions)
        for end in ends:
            self.outlet.exit(end.code, end.reason)

    # jobs

    def _submit(self, spec: JobSpec) -> JobSubmitted | PrepareFailed:
        """Prepare, encode, submit. A failure at any step gives back what was taken, in reverse order."""
        port = self.ports[spec.session]
        contract = port.session.graphs[spec.graph]
        wrong = check_job(contract, spec)
        if wrong:
            return _unprepared(spec, Failure("prepare", CalCode.SHAPE_MISMATCH, FaultClass.PROGRAMMING, wrong))
        key = PoolKey(spec.generation, spec.graph, spec.task, spec.bank, contract.profile.batch)
        code, lease = port.pool.take(key)
        if lease is None:
            return _unprepared(spec, failure("buffers", code))
        fault = self._apply_kv(port, spec)
        if fault is not None:
            port.pool.give_back(lease)
            return _unprepared(spec, fault)
        fault, ticket = self._encode(port, spec, lease), None
        if fault is None:
            code, ticket = port.session.submit(spec, lease.buffers)
        if ticket is None:
            _undo_kv(port, spec.rows)
            port.pool.give_back(lease)
            return _unprepared(spec, fault or failure("submit", code))
        lease.step(BufferEvent.SUBMIT)
        idle = self.clock() - port.last_ended_ns if port.last_ended_ns else 0
        port.last_ended_ns = 0
        sequences = [self._lend(row.request) for row in spec.rows]
        job = SubmittedJob(spec, port.session, contract, ticket, lease, sequences)
        self.ways.to_completion(job)
        return JobSubmitted(spec.job, spec.generation, idle)

    def _apply_kv(self, port: SessionPort, spec: JobSpec) -> Failure | None:
        """The device's view of KV follows the job's rows; all of them or none."""
        kv = port.session.kv
        starting = sum(len(row.kv_units) for row in spec.rows if row.first_position == 0)
        if starting and not kv.can_allocate(starting):
            self.kv_blocked.add(spec.session)
            return failure(KV_STAGE, CalCode.DEVICE_BUSY, f"the board cannot allocate {starting} units yet")
        for at, row in enumerate(spec.rows):
            code = kv.apply(row.lane, row.kv_units, row.first_position + row.token_count)
            if code:
                _undo_kv(port, spec.rows[:at])
                return failure("apply", code, f"the board refused units for lane {row.lane}")
            port.held.add(row.lane)
        return None

    def _encode(self, port: SessionPort, spec: JobSpec, lease: Lease) -> Failure | None:
        """The rows' tokens into the leased buffers. The sequences stay here until the device took the job."""
        tokens = [self._resting(row).tokens(row.first_position, row.token_count) for row in spec.rows]
        fault = encode(port.session.graphs[spec.graph], spec, tokens, lease.buffers)
        return failure(fault.operation, fault.code, fault.tensor) if fault else None

    def _resting(self, row: Row) -> Sequence:
        """The row's sequence; a new one where the request starts over and the old one is lost or has advanced."""
        sequence = self.sequences[row.request]
        if row.first_position == 0 and (sequence is None or sequence.generated):
            sequence = Sequence(*self.origins[row.request])
            self.sequences[row.request] = sequence
        assert sequence is not None, f"{row.request} is already in a job"
        return sequence

    def _lend(self, request: str) -> Sequence:
        sequence = self.sequences[request]
        assert sequence is not None
        self.sequences[request] = None
        return sequence

    def _retire(self, done: Completed) -> dict[tuple[int, int], Delivery]:
        """Take back what travelled with the job; a sequence whose request ended meanwhile is dropped."""
        job = done.job
        port = self.ports.get(job.spec.session)
        if port is None or port.generation != job.spec.generation:
            # Its pool is gone, and so are its sequences: a request that goes on has started over with a new one.
            job.lease.step(BufferEvent.QUARANTINE)
            return {}
        for sequence in job.sequences:
            if sequence.request in self.sequences:
                self.sequences[sequence.request] = sequence
        if isinstance(done.event, JobFailed):
            port.pool.quarantine(job.lease)
        else:
            port.last_ended_ns = done.ended_ns
            # Before the next job, not after it: a second set of buffers would spare the 0.1 ms of cleaning, and
            # cost far more in cold caches than it spares (measured: 10-20 % of the step rate at 16 rows).
            port.pool.give_back(job.lease)
        number = job.spec.job
        return {(number, i): said for i, said in enumerate(done.deliveries) if said is not None}

    def _release_lane(self, command: ReleaseLane, facts: deque[Event]) -> None:
        port = self.ports.get(command.session)
        if port is None or port.generation != command.generation:
            return
        # A lane that never reached the device frees nothing there: telling of it would be asking in a circle.
        if command.lane in port.held:
            port.held.discard(command.lane)
            port.session.kv.release(command.lane)
            if command.session in self.kv_blocked:
                self.kv_blocked.discard(command.session)
                facts.append(KvReleased(command.session))

    # lifecycle

    def _adopt(self, done: LifecycleDone) -> None:
        if done.session is not None:
            session = done.session
            generation = getattr(done.event, "generation", 0)
            self.ports[session.name] = SessionPort(session, generation, BufferPool(session, self.jobs_kept))
            self.ways.open_completion(session.name, generation)

    def _order(self, command: Command) -> None:
        session = None
        if isinstance(command, Release | Reset):
            port = self.ports.pop(command.session, None)
            if port is not None:
                session = port.session
                self.ways.close_completion(command.session, port.generation)
        assert isinstance(command, Validate | Configure | Warm | Release | Reset)
        self.ways.to_lifecycle(LifecycleOrder(command, session))


def _undo_kv(port: SessionPort, rows: Many[Row]) -> None:
    """Take back what a job that was not submitted was given: lanes it would have started, last first.

    A lane that already held tokens keeps what it has; applying the same units again changes nothing.
    """
    for row in reversed(rows):
        if row.first_position == 0:
            port.held.discard(row.lane)
            port.session.kv.release(row.lane)


def _unprepared(spec: JobSpec, fault: Failure) -> PrepareFailed:
    return PrepareFailed(spec.job, spec.generation, fault)
