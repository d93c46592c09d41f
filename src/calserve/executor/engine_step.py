"""The engine step: one message in, `core`'s orders carried out.

Runs on the engine thread, which alone holds the engine, the buffer pools and every sequence that is not in a
job. A turn: the message's fact goes to `core`; lanes it freed are released on the device; its jobs are
prepared and submitted at once; only then are clients told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
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
from calserve.core.events import (
    BoardAnomaly,
    Event,
    JobFailed,
    JobSubmitted,
    KvReleased,
    PrepareFailed,
    Released,
    ResetDone,
)
from calserve.core.job import JobSpec, Row
from calserve.core.outcomes import QUEUE_STAGE, Failure, FaultClass
from calserve.core.states import BufferEvent, GenerationState
from calserve.executor.audit import BoardAudit
from calserve.executor.clock import Clock
from calserve.executor.completion import Completed, GivenUp, SubmittedJob
from calserve.executor.ending import REACHES_ALL, Endings
from calserve.executor.lifecycle import LifecycleDone, LifecycleOrder
from calserve.executor.messages import Delivery, Inspect, Outlet, Recorder, Submission
from calserve.executor.pool import BufferCounts, Lease, PoolKey
from calserve.executor.port import SessionPort
from calserve.executor.prepare import check_prepared
from calserve.executor.sequence import Origin, Sequence
from calserve.executor.telling import Telling, broken_off
from calserve.runtime.contract import Code, GraphContract, Session
from calserve.runtime.encoding import encode
from calserve.runtime.errors import CalCode, failure, meaning

Message = Submission | Completed | GivenUp | LifecycleDone | Inspect | Event


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
    quarantined; the pool of a session that ends is kept by `endings`. Called on the engine thread only, `buffer_counts`
    aside.

    lent: the job a sequence was last lent to. Only that one gives it back: a request that has started over meanwhile
        goes on with the new one.

    audit: compares the board's job counters with ours when nothing is in flight.
    """

    engine: Engine
    outlet: Outlet
    ways: Ways
    clock: Clock
    recorders: Many[Recorder] = ()
    jobs_kept: int = 1  # buffers per pool key: as many as jobs in flight
    ports: dict[str, SessionPort] = field(default_factory=dict)
    sequences: dict[str, Sequence | None] = field(default_factory=dict)  # None: in a job
    lent: dict[str, int] = field(default_factory=dict)
    telling: Telling = field(default_factory=Telling)
    origins: dict[str, Origin] = field(default_factory=dict)  # to start over when a job never came back
    told: tuple[tuple[str, int, GenerationState], ...] = ()  # session states, as the outlet knows them
    audit: BoardAudit = field(default_factory=BoardAudit)
    endings: Endings = field(default_factory=Endings)
    orders_out: int = 0  # lifecycle orders not answered: a warm-up has jobs of its own on the board
    anomalies: list[BoardAnomaly] = field(default_factory=list)  # to be told after the turn they were seen in

    def take(self, message: Message) -> None:
        """One message to its end. An exception (a call to the board broke off, an invariant broke) ends the process,
        loudly; whoever is open then is told here, for no step follows."""
        try:
            self._take(message)
        except Exception:
            open_requests, self.origins = self.origins, {}
            if open_requests:
                self.outlet.deliver(broken_off(open_requests))
            raise

    def _take(self, message: Message) -> None:
        match message:
            case Submission():
                if message.event.request not in self.origins:  # another's name: core refuses it, and he keeps his own
                    self.sequences[message.event.request] = message.sequence
                    self.origins[message.event.request] = message.sequence.origin
                self._turn(message.event, {})
            case Completed():
                said = self._retire(message)
                # Between the last job's end and the next submit, or a board that never rests is never looked at.
                if self.audit.is_due(now := self.clock()):
                    self._compare_counters(message.job.spec.session, message.job.spec.generation, now)
                self._turn(message.event, said)
            case GivenUp():
                spec = message.job.spec
                self.endings.take_home(spec.session, spec.generation, message.job.lease)
            case LifecycleDone():
                for fact in message.aside:
                    self._turn(fact, {})
                self._adopt(message)
                self._turn(message.event, {})
            case Inspect():
                message.reply(self.engine.snapshot(self.clock()))
            case _:
                self._turn(message, {})
        for port in self.ports.values():
            if port.refused:
                name, generation = port.session.name, port.generation
                self.anomalies += (BoardAnomaly(name, generation, text, is_kv=True) for text in port.refused)
                port.refused.clear()
        while self.anomalies:
            self._turn(self.anomalies.pop(0), {})

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
            later += [command for command in commands if not isinstance(command, SubmitJob | ReleaseLane)]
            try:
                for command in commands:
                    if isinstance(command, SubmitJob):
                        facts.extend(self._submit(command.spec))
                    elif isinstance(command, ReleaseLane):
                        self._release_lane(command, facts)
            except Exception:
                self._tell_clients(later, said)  # it was decided, and holds
                raise
            finally:  # the board first, who looks on after it; and what was decided is on record whatever came of it
                for record in self.recorders:
                    record(now, fact, commands)
        self._tell(later, said)
        for port in self.ports.values():
            port.last_ended_ns = 0  # the board's idle time counts only where work followed at once

    def _tell(self, commands: list[Command], said: dict[tuple[int, int], Delivery]) -> None:
        """Clients, the lifecycle thread, whoever watches the sessions; an Exit last of all."""
        self._tell_clients(commands, said)
        ends: list[Exit] = []
        for command in commands:
            if isinstance(command, Exit):
                ends.append(command)
            elif not isinstance(command, Emit | Finish):
                self._order(command)
        states = self.engine.session_states()
        if states != self.told:
            self.told = states
            self.outlet.sessions_changed(self.engine.snapshot(self.clock()).sessions)
        for end in ends:
            self.outlet.exit(end.code, end.reason)

    def _tell_clients(self, commands: list[Command], said: dict[tuple[int, int], Delivery]) -> None:
        for command in commands:
            if isinstance(command, Finish):
                self.sequences.pop(command.request, None)
                self.origins.pop(command.request, None)
                self.lent.pop(command.request, None)
        batch = self.telling.batch(commands, said)
        if batch:
            self.outlet.deliver(batch)

    # jobs

    def _submit(self, spec: JobSpec) -> tuple[Event, ...]:
        """Prepare, encode, submit. A failure at any step gives back what was taken, in reverse order."""
        port = self.ports[spec.session]
        contract = port.session.graphs[spec.graph]
        tokens = [self._resting(row, spec.job).tokens(row.first_position, row.token_count) for row in spec.rows]
        fault = check_prepared(contract, spec, port.room, tokens)
        if fault is not None:
            return _unprepared(spec, fault)
        lease = port.pool.take(PoolKey(spec.generation, spec.graph, spec.task, spec.bank, contract.profile.batch))
        if isinstance(lease, Failure):
            return _unprepared(spec, lease)
        fault = port.apply_kv(spec)
        if fault is not None:
            port.pool.give_back(lease)
            return _unprepared(spec, fault)
        fault = _encode(contract, spec, tokens, lease) or self._missed(spec)
        code, ticket = port.session.submit(spec, lease.buffers) if fault is None else (fault.code, None)
        if fault is not None or (code and ticket is None):
            port.undo_kv(spec.rows)
            port.pool.give_back(lease)
            return _unprepared(spec, fault or failure("submit", code))
        lease.step(BufferEvent.SUBMIT)
        idle = self.clock() - port.last_ended_ns if port.last_ended_ns else 0
        port.last_ended_ns = 0
        submitted = JobSubmitted(spec.job, spec.generation, idle)
        if code or ticket is None:
            port.pool.quarantine(lease)
            return submitted, _contradicted(spec, code)
        port.in_flight += 1
        sequences = [self._lend(row.request, spec.job) for row in spec.rows]
        self.ways.to_completion(SubmittedJob(spec, port.session, contract, ticket, lease, sequences))
        return (submitted,)

    def _missed(self, spec: JobSpec) -> Failure | None:
        """The queue deadline (seed 003, section 9.1): what is not with the board by then rolls back."""
        late = self.clock() - spec.submit_by_ns if spec.submit_by_ns else 0
        return failure(QUEUE_STAGE, CalCode.TIMEOUT, f"ready {late} ns after the queue deadline") if late > 0 else None

    def _resting(self, row: Row, job: int) -> Sequence:
        """The row's sequence; a new one where the request starts over and the old one is lost or has advanced."""
        sequence = self.sequences[row.request]
        if row.first_position == 0 and (sequence is None or sequence.generated):
            sequence = Sequence(*self.origins[row.request])
            self.sequences[row.request] = sequence
            self.lent.pop(row.request, None)
            self.telling.begins_anew(row.request, job)
        assert sequence is not None, f"{row.request} is already in a job"
        return sequence

    def _lend(self, request: str, job: int) -> Sequence:
        sequence = self.sequences[request]
        assert sequence is not None
        self.sequences[request] = None
        self.lent[request] = job
        return sequence

    def _retire(self, done: Completed) -> dict[tuple[int, int], Delivery]:
        """Take back what travelled with the job; a sequence whose request ended or started over is dropped."""
        job = done.job
        port = self.ports.get(job.spec.session)
        if port is None or port.generation != job.spec.generation:
            # Its sequences are gone: a request that goes on has started over with new ones.
            self.endings.take_home(job.spec.session, job.spec.generation, job.lease)
            return {}
        port.in_flight -= 1
        for sequence in job.sequences:
            if self.lent.get(sequence.request) == job.spec.job:
                del self.lent[sequence.request]
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
        if port.release_lane(command.lane):
            facts.append(KvReleased(command.session))

    # the board's own account

    def _compare_counters(self, session: str, generation: int, now_ns: int) -> None:
        """Only where nothing may be in flight: no job, no warm-up, no session whose end is under way, and no job that
        was never called over."""
        if self.orders_out or self.endings.ports or self.endings.fenced:
            return
        if any(port.in_flight or port.pool.has_unended for port in self.ports.values()):
            return
        wrong = self.audit.news(session, generation, now_ns)
        if wrong:
            self.anomalies.append(BoardAnomaly(session, generation, wrong))

    def leave_unended(self) -> None:
        """No step follows, and the process ends: what a device may still write outlives all of this."""
        for port in (*self.ports.values(), *self.endings.ports.values(), *self.endings.fenced.values()):
            port.pool.leave_unended()

    def buffer_counts(self) -> BufferCounts:
        """Over all sessions, those included that are about to end. Also from another thread, which only reads."""
        counts = [port.pool.counts() for port in self.ports.values()] + self.endings.counts()
        return BufferCounts(
            sum(c.allocated for c in counts), sum(c.leased for c in counts), sum(c.quarantined for c in counts)
        )

    # lifecycle

    def check_ports(self, open_completions: Collection[tuple[str, int]]) -> None:
        """Raise unless a generation has a completion thread just while it is in use, and an ended one left nothing."""
        in_use = {(name, port.generation) for name, port in self.ports.items()}
        assert in_use == set(open_completions), f"in use: {in_use}, waited for: {open_completions}"
        assert not {name for name, _ in self.endings.ports} & set(self.ports), "an ended generation was left behind"

    def _adopt(self, done: LifecycleDone) -> None:
        self.orders_out -= 1
        event, session = done.event, done.session
        if isinstance(event, Released | ResetDone) and event.failure is None:
            self.endings.over(event.session, done.scope)
        if session is not None:
            assert session.name not in self.ports, f"{session.name} was never ended"
            generation = getattr(event, "generation", 0)
            self.ports[session.name] = SessionPort.of(session, generation, self.jobs_kept)
            self.ways.open_completion(session.name, generation)

    def _order(self, command: Command) -> None:
        assert isinstance(command, Validate | Configure | Warm | Release | Reset)
        sessions: tuple[Session, ...] = ()
        if isinstance(command, Reset) and command.scope in REACHES_ALL:
            names = dict.fromkeys((*self.ports, *(name for name, _ in self.endings.ports), command.session))
            sessions = tuple(session for name in names for session in self._end(name))
        elif isinstance(command, Release | Reset):
            sessions = self._end(command.session)
        self.orders_out += 1
        self.ways.to_lifecycle(LifecycleOrder(command, sessions))

    def _end(self, name: str) -> tuple[Session, ...]:
        """The session that is to be ended, taken out of use; asked again after a failure, what was not ended then."""
        port = self.ports.pop(name, None)
        if port is None:
            port = self.endings.of(name)
            return () if port is None else (port.session,)
        if port.in_flight == 0:
            self._compare_counters(name, port.generation, self.clock())
        self.endings.add(port)
        self.ways.close_completion(name, port.generation)
        return (port.session,)


def _encode(contract: GraphContract, spec: JobSpec, tokens: Many[Many[int]], lease: Lease) -> Failure | None:
    """The rows' tokens into the leased buffers. The sequences stay here until the device took the job."""
    fault = encode(contract, spec, tokens, lease.buffers)
    return failure(fault.operation, fault.code, fault.tensor) if fault else None


def _unprepared(spec: JobSpec, fault: Failure) -> tuple[PrepareFailed]:
    return (PrepareFailed(spec.job, spec.generation, fault),)


def _contradicted(spec: JobSpec, code: Code) -> JobFailed:
    """Code and ticket do not agree: the device may run the job, and nobody can wait for it."""
    detail = f"a ticket, and yet: {meaning(code).name}" if code else "success without a ticket"
    return JobFailed(spec.job, spec.generation, Failure("submit", code, FaultClass.UNKNOWN, detail), has_ended=False)
