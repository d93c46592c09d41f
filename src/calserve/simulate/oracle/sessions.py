"""What each session announced, how long it stood idle, and what trouble there was.

Owns: the state of every session and how long it may last (I11), the idle time of a session that serves (I8), and the
times of trouble by which an early end is excused (I7). Must not know: tokens, lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from calserve.simulate.oracle.answers import Answer
from calserve.simulate.oracle.findings import Findings
from calserve.simulate.oracle.world import World

NEVER = -1
_RESTING = ("ready", "failed", "unloaded")
_GONE = ("failed", "unloaded")


@dataclass(slots=True)
class Session:
    """state: as announced, "" before. due_ns: when the state must have changed, 0 for never.

    idle_since_ns: since when nothing is in flight and it serves; None otherwise. busy: jobs whose completion the host
    waits for, oldest first: ticket -> since when. trouble_ns: when something last went wrong on it.
    """

    name: str
    model: str
    state: str = ""
    generation: int = 0
    since_ns: int = 0
    due_ns: int = 0
    idle_since_ns: int | None = None
    busy: dict[int, int] = field(default_factory=dict)
    trouble_ns: int = NEVER
    limit: int = 1


@dataclass(slots=True)
class Sessions:
    """Invariants: a session is idle only while READY with an empty `busy`."""

    world: World
    findings: Findings
    waiting: Callable[[], Iterable[Answer]]  # live requests, oldest first
    by_name: dict[str, Session] = field(default_factory=dict)
    trouble_ns: int = NEVER  # anywhere
    quiet_until_ns: int = 0  # a transient refusal may hold every session back until then
    was_hit: bool = False  # whether the device, or its host, ever gave a reason to recover
    kv_refused_upto: int = 0  # requests up to this serial may wait for KV the board said it had not

    def __post_init__(self) -> None:
        for name, model in self.world.sessions.items():
            self.by_name[name] = Session(name, model, limit=self.world.max_in_flight)

    def get(self, name: str) -> Session:
        """Of a session nobody told of before too: its model is then not known."""
        found = self.by_name.get(name)
        if found is None:
            found = self.by_name[name] = Session(name, "", limit=self.world.max_in_flight)
        return found

    # --- states -----------------------------------------------------------------------------------------

    def announce(self, name: str, generation: int, state: str, at_ns: int) -> None:
        session = self.get(name)
        self._check_due(session, at_ns)
        if state == session.state and generation == session.generation:
            return
        self._check_idle(session, at_ns)
        world = self.world
        if state == "recovering" and world.is_trouble_visible and not self.was_hit:
            sentence = f"session {name} generation {generation} recovers, and nothing ever went wrong"
            self.findings.add("I7", at_ns, sentence)
        bound = {
            "draining": world.drain_bound_ns,
            "recovering": world.recovery_bound_ns,
            "validating": world.load_bound_ns,
            "unloading": world.load_bound_ns,
        }.get(state)
        if state in _RESTING:
            session.due_ns = 0
        elif bound is not None:
            session.due_ns = at_ns + bound if bound else 0
        elif session.due_ns == 0 and world.load_bound_ns:
            session.due_ns = at_ns + world.load_bound_ns
        session.state, session.generation, session.since_ns = state, generation, at_ns
        if state == "ready":
            session.idle_since_ns = None if session.busy else at_ns
        else:
            session.idle_since_ns = None
            self.trouble(session, at_ns)

    def serves(self, model: str) -> bool:
        """Whether every session of the model serves."""
        return all(s.state == "ready" for s in self.by_name.values() if s.model == model)

    def is_known(self, model: str, since_ns: int) -> bool:
        """Whether some session had the model all the time since."""
        return any(
            s.model == model and s.state not in ("", "unloaded") and s.since_ns <= since_ns
            for s in self.by_name.values()
        )

    def _check_due(self, session: Session, at_ns: int) -> None:
        if 0 < session.due_ns < at_ns:
            late, session.due_ns = session.due_ns, 0
            self.findings.add(
                "I11",
                at_ns,
                f"session {session.name} generation {session.generation} is {session.state} since "
                f"{session.since_ns}, and was to be through by {late}",
            )

    # --- trouble ----------------------------------------------------------------------------------------

    def trouble(self, session: Session | None, at_ns: int) -> None:
        """Something went wrong on a session, or (None) on the board as a whole."""
        self.trouble_ns = at_ns
        if session is not None:
            session.trouble_ns = at_ns

    def trouble_everywhere(self, at_ns: int) -> None:
        for session in self.by_name.values():
            self.trouble(session, at_ns)

    def had_trouble(self, session: str, since_ns: int) -> bool:
        """session "": anywhere."""
        at_ns = self.get(session).trouble_ns if session else self.trouble_ns
        return at_ns >= since_ns

    # --- idle -------------------------------------------------------------------------------------------

    def job_began(self, name: str, ticket: int, at_ns: int) -> None:
        session = self.get(name)
        self._check_idle(session, at_ns)
        session.busy[ticket] = at_ns
        session.idle_since_ns = None

    def job_over(self, name: str, ticket: int, at_ns: int) -> None:
        """The host knows of its end, or never will."""
        session = self.get(name)
        session.busy.pop(ticket, None)
        if not session.busy and session.state == "ready" and session.idle_since_ns is None:
            session.idle_since_ns = at_ns

    def refused_transiently(self, at_ns: int) -> None:
        self.quiet_until_ns = at_ns + self.world.backoff_bound_ns

    def refused_kv(self, at_ns: int, newest: int) -> None:
        """No room said the board: who waits now may wait until it says otherwise, which it may never do for them.
        Whoever comes after all of these have ended may not."""
        self.refused_transiently(at_ns)
        self.kv_refused_upto = newest

    def process_ended(self, at_ns: int) -> None:
        self.was_hit = True
        for session in self.by_name.values():  # before any is cleared: what one was busy with excuses the others
            self._check_idle(session, at_ns)
        for session in self.by_name.values():
            session.busy.clear()
            session.idle_since_ns = None
            session.state, session.due_ns, session.since_ns = "", 0, at_ns
            session.limit = self.world.max_in_flight
        self.trouble_everywhere(at_ns)

    def check(self, at_ns: int) -> None:
        for session in self.by_name.values():
            self._check_due(session, at_ns)
            self._check_idle(session, at_ns)
            self._check_jobs(session, at_ns)

    def _check_jobs(self, session: Session, at_ns: int) -> None:
        """I11: a session does not serve on while it waits for a job without end."""
        bound = self.world.job_bound_ns
        if not bound or not session.busy or session.state != "ready":
            return
        ticket, since = next(iter(session.busy.items()))
        if at_ns - max(since, session.since_ns) > bound:
            session.busy[ticket] = at_ns
            where = f"session {session.name} generation {session.generation}"
            self.findings.add("I11", at_ns, f"{where} serves on, and its ticket {ticket} is out since {since}")

    def _check_idle(self, session: Session, at_ns: int) -> None:
        """I8: nothing in flight, and somebody who could run, for longer than the host needs."""
        if session.idle_since_ns is None:
            return
        world = self.world
        allowed = world.host_slack_ns + world.told_slack_ns + world.batching_window_ns
        since = max(session.idle_since_ns, self.quiet_until_ns)
        if at_ns - since <= allowed:
            return
        peers = [s for s in self.by_name.values() if s.model == session.model and s.state not in _GONE and s.state]
        idle = [s.idle_since_ns for s in peers if s.idle_since_ns is not None]
        all_since = max(since, *idle) if len(idle) == len(peers) else None
        for answer in self.waiting():
            if answer.request.deadline_ns < at_ns:
                continue
            began = self._could_run_since(answer, session, since, all_since)
            if began is None or at_ns - began <= allowed:
                continue
            if answer.is_waiting and answer.serial <= self.kv_refused_upto:
                return
            self.findings.add(
                "I8",
                at_ns,
                f"session {session.name} generation {session.generation} has nothing in flight since {since} "
                f"and {answer.name} could run since {began}",
            )
            session.idle_since_ns = at_ns
            return

    def _could_run_since(self, answer: Answer, session: Session, since: int, all_since: int | None) -> int | None:
        """Since when `answer` surely could run on `session`; None when that is not sure."""
        if answer.cancelled_ns is not None or answer.request.model != session.model:
            return None
        if answer.generation and answer.session == session.name and answer.generation == session.generation:
            return max(since, answer.request.submitted_ns)
        if all_since is None or not answer.is_waiting:
            return None
        return max(all_since, answer.request.submitted_ns)
