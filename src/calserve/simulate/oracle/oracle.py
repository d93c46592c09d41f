"""The oracle itself: takes the three accounts in the order of time and hands each fact to who judges it.

Owns: the requests that are live, the count of all there were, deadlines and cancels that are due. Must not know: what
is right; that stands in the other modules of this folder. Life: `World` in, facts in, `check` now and then, `finish`
once; `violations` tells.

Memory: one entry per live request, per job on the board and per lane; of those that ended, the last few names and the
counts.
"""

from __future__ import annotations

import heapq

from calserve.runtime.sim.facts import DeviceFact, FactKind
from calserve.simulate.oracle.answers import Answer, Answers
from calserve.simulate.oracle.board import Board, Seen
from calserve.simulate.oracle.ends import PROCESS_ENDED, Ends
from calserve.simulate.oracle.fairness import Fairness
from calserve.simulate.oracle.findings import Findings, Violation
from calserve.simulate.oracle.line import Lines
from calserve.simulate.oracle.sessions import Sessions
from calserve.simulate.oracle.shares import Shares
from calserve.simulate.oracle.world import ClientRequest, World

# names of ended requests that are kept to tell a late delivery from one for a request that never was
ENDED_KEPT = 4096
_NO_KV = "kv_cannot_allocate"
_SPOILED = ("logits_nan", "logits_inf", "output_short")
_BLOWS = (FactKind.FAULT, FactKind.RESET, FactKind.HOST_ENDED)


class Oracle:
    """Invariants: `submitted` = live + ends, by reason. Everything is told in the order of time, on one thread."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._findings = Findings()
        self._answers = Answers(world)
        self._live: dict[str, Answer] = {}
        self._ended: dict[str, str] = {}  # the last few: name -> reason
        self._count = 0
        self.ends: dict[str, int] = {}
        self._due: list[tuple[int, int, str, str]] = []  # (when, serial, name, what)
        self._last_exit: int | None = None
        self._lines = Lines(world)
        self._sessions = Sessions(world, self._findings, self._live.values)
        self._fairness = Fairness(world, self._findings)
        self._shares = Shares(world, self._findings)
        self._ends = Ends(world, self._findings, self._answers, self._sessions, self._lines)
        seen = Seen(self._live.get, self._ran, self._lost)
        self._board = Board(world, self._findings, self._sessions, self._answers, seen)

    @property
    def violations(self) -> list[Violation]:
        """The first few."""
        return self._findings.kept

    @property
    def violation_count(self) -> int:
        return self._findings.count

    @property
    def submits(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Entries kept of requests and jobs: does not grow with the length of a run."""
        return len(self._live) + len(self._ended) + self._board.size

    # --- clients ----------------------------------------------------------------------------------------

    def submitted(self, request: ClientRequest) -> None:
        """Raises ValueError for a name that is live: names are the caller's to keep apart."""
        if request.name in self._live:
            raise ValueError(f"request {request.name} was submitted twice")
        self._count += 1
        answer = self._answers.make(request, self._count)
        self._live[request.name] = answer
        self._lines.change(answer, 1, request.submitted_ns)
        self._fairness.submitted(answer)
        self._shares.submitted(answer)
        due_ns = max(request.deadline_ns, request.submitted_ns) + self.world.deadline_slack_ns
        heapq.heappush(self._due, (due_ns, self._count, request.name, "deadline"))

    def cancelled(self, name: str, at_ns: int) -> None:
        """The client asked for its end, went away, or stopped reading. Repeating it, or naming a request that has
        ended, changes nothing."""
        answer = self._live.get(name)
        if answer is not None and answer.cancelled_ns is None:
            answer.cancelled_ns = at_ns
            heapq.heappush(self._due, (at_ns + self.world.cancel_slack_ns, answer.serial, name, "cancel"))

    def starts_over(self, name: str, at_ns: int) -> None:
        """Who gathers the answer is told to drop what came before. Once, only where the client has seen nothing, and
        only where the board did begin again."""
        answer = self._live.get(name)
        if answer is None:
            self._stray(name, "word that it starts over", at_ns)
            return
        answer.start_over()
        if not answer.request.is_whole:
            self._findings.add("I5", at_ns, f"at {at_ns}: {name} starts over, and its client reads as it comes")
        elif answer.starts_over > 1 or answer.run < 2:
            sentence = f"at {at_ns}: {name} is told {answer.starts_over} times to start over, and began {answer.run}"
            self._findings.add("I5", at_ns, sentence)

    def answered(self, name: str, text: str, at_ns: int) -> None:
        """A client that reads nothing before the end gets all of it. Told before the end it belongs to."""
        answer = self._live.get(name)
        if answer is not None and not answer.is_bad and text != answer.told:
            answer.is_bad = True
            sentence = f"at {at_ns}: {name} got {text!r} in one piece, where {answer.told!r} was sent of it"
            self._findings.add("I10", at_ns, sentence)

    def received(self, name: str, tokens: tuple[int, ...], text: str, at_ns: int) -> None:
        answer = self._live.get(name)
        if answer is None:
            self._stray(name, f"{len(tokens)} tokens {tokens[:4]}", at_ns)
            return
        if answer.is_bad:
            return
        for token in tokens:
            problem = self._take(answer, token)
            if problem:
                answer.is_bad = True
                where = f"session {answer.session} generation {answer.generation} lane {answer.lane}"
                self._findings.add("I10", at_ns, f"at {at_ns}: {name} ({where}) {problem}")
                return
        if not self._answers.owes(answer, text):
            answer.is_bad = True
            sentence = f"at {at_ns}: {name} received text {text!r} where it was owed {answer.owed!r}"
            self._findings.add("I10", at_ns, sentence)

    def _take(self, answer: Answer, token: int) -> str:
        index = answer.received
        if answer.stop:
            return f"received token {token} after a stop {answer.stop} had ended it"
        if index >= answer.request.max_new_tokens:
            return f"received token {token} beyond its {index} tokens"
        if not self._answers.is_right(answer, index, token):
            right = self._answers.expected(answer, index)
            return f"received token {token} as output {index}, where {right} is right"
        self._answers.take(answer, token)
        if answer.received > answer.sound_outputs:
            return f"received output {index}, and the host was told of {answer.sound_outputs} sound jobs that gave one"
        return ""

    def ended(self, name: str, reason: str, detail: str, completion_tokens: int, at_ns: int) -> None:
        """reason: as told; "process_ended" where the server's process died under it."""
        answer = self._live.pop(name, None)
        if answer is None:
            self._stray(name, f"an end ({reason})", at_ns)
            return
        self._ends.judge(answer, (reason, detail, completion_tokens), at_ns)
        self._leave(answer, at_ns)
        answer.has_ended = True
        self.ends[reason] = self.ends.get(reason, 0) + 1
        self._ended[name] = reason
        if len(self._ended) > ENDED_KEPT:
            del self._ended[next(iter(self._ended))]
        if reason == PROCESS_ENDED and self._last_exit is not None:
            self._ends.process_ended(at_ns, self._last_exit)

    def _stray(self, name: str, what: str, at_ns: int) -> None:
        reason = self._ended.get(name)
        when = f"after its end ({reason})" if reason is not None else "and is not live"
        self._findings.add("I1", at_ns, f"at {at_ns}: {name} received {what} {when}")

    def _leave(self, answer: Answer, at_ns: int) -> None:
        if answer.is_waiting:
            self._lines.change(answer, -1, at_ns)
            self._fairness.left_line(answer, at_ns)
            self._shares.left_line(answer)
        else:
            self._fairness.stopped(answer, at_ns, is_end=True)
            self._shares.ended(answer, at_ns)

    # --- what the board's account says of a request -----------------------------------------------------

    def _ran(self, answer: Answer, at_ns: int) -> None:
        """It has a lane. For its tenant's share it still counts as waiting at this instant."""
        if answer.is_waiting:
            self._fairness.started(answer, at_ns)
            self._shares.started(answer, at_ns)
            answer.is_waiting = False
            self._lines.change(answer, -1, at_ns)
            self._fairness.left_line(answer, at_ns)

    def _lost(self, answer: Answer, at_ns: int) -> None:
        """What it had on the board is gone: it may be back in its line, or about to end."""
        if not answer.is_waiting and not answer.has_ended:
            answer.is_waiting = True
            self._lines.change(answer, 1, at_ns)
            self._fairness.stopped(answer, at_ns, is_end=False)

    # --- board and server -------------------------------------------------------------------------------

    def fact(self, fact: DeviceFact) -> None:
        """The listener of the device."""
        self._board.take(fact)
        kind = fact.kind
        if kind in _BLOWS:
            self._sessions.was_hit = True
        if kind is FactKind.FAULT:
            self._fault(fact)
        elif kind is FactKind.RESET:
            self._sessions.trouble(None, fact.at_ns)
        elif kind is FactKind.HELD:
            where = f"session {fact.session} generation {fact.generation}"
            self._findings.add(
                "I4", fact.at_ns, f"at {fact.at_ns}: {where} submitted host memory that a job still holds"
            )

    def _fault(self, fact: DeviceFact) -> None:
        self._sessions.trouble(None, fact.at_ns)
        self._ends.has_spoiled_output = self._ends.has_spoiled_output or fact.detail in _SPOILED
        if fact.detail == _NO_KV:
            self._sessions.refused_kv(fact.at_ns, self._count)
        else:
            self._sessions.refused_transiently(fact.at_ns)

    def process_started(self, at_ns: int) -> None:
        self._last_exit = None
        for answer in [each for each in self._live.values() if each.request.submitted_ns < at_ns]:
            self._findings.add("I1", at_ns, f"at {at_ns}: {answer.name} has no end, and its process is gone")
            answer.is_bad = True

    def process_ended(self, at_ns: int, code: int) -> None:
        self._last_exit = code
        self._board.host_ended(at_ns)
        self._sessions.process_ended(at_ns)
        self._ends.process_ended(at_ns, code)
        self._ends.check(at_ns)

    def session_state(self, session: str, generation: int, state: str, at_ns: int) -> None:
        """What the server announced."""
        self._sessions.announce(session, generation, state, at_ns)
        self._ends.check(at_ns)
        if state == "ready":
            return
        self._fairness.forget(self._sessions.get(session).model)
        self._shares.forget()
        for answer in self._live.values():
            # who has received something may go on through a drain; after it nobody has a lane
            may_run = answer.received and state != "recovering"
            if answer.session == session and not (answer.is_waiting or answer.is_seen or may_run):
                self._lost(answer, at_ns)

    def in_flight_limit(self, session: str, limit: int, at_ns: int) -> None:
        """The server announced how many jobs it has at once from now on, at most the proven number (I6)."""
        if limit > self.world.max_in_flight:
            sentence = (
                f"at {at_ns}: session {session} is to have {limit} jobs at once, {self.world.max_in_flight} proven"
            )
            self._findings.add("I6", at_ns, sentence)
        self._sessions.get(session).limit = limit

    # --- time -------------------------------------------------------------------------------------------

    def check(self, at_ns: int) -> None:
        """What is overdue by now. Costs what is due and a look at every session."""
        due = self._due
        while due and due[0][0] < at_ns:
            due_ns, serial, name, what = heapq.heappop(due)
            answer = self._live.get(name)
            if answer is not None and answer.serial == serial and not answer.is_bad:
                answer.is_bad = True
                self._findings.add("I11", at_ns, f"at {at_ns}: {name} has not ended, due by its {what} at {due_ns}")
        self._sessions.check(at_ns)
        self._ends.check(at_ns)

    def finish(self, at_ns: int) -> None:
        """Everybody had an end by now, and the counts close (I1, I12)."""
        self.check(at_ns)
        self._ends.check(at_ns, is_last=True)
        for answer in self._live.values():
            submitted = answer.request.submitted_ns
            self._findings.add("I1", at_ns, f"at {at_ns}: {answer.name}, submitted at {submitted}, has no end")
        told = sum(self.ends.values())
        if told + len(self._live) != self._count:
            sentence = f"at {at_ns}: {self._count} submits, {told} ends, {len(self._live)} open"
            self._findings.add("I12", at_ns, sentence)
