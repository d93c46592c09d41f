"""The board's account of its jobs, held against what clients asked and against itself.

Owns: every job from its submit to its end, which lanes a job may still write, which lanes a failed job left unknown,
and who holds a lane. Must not know: why a job was made. Checks I2 to I6, and that what the device read is what the
job was said to be: so a host buffer that was reused before its DMA, a wrong lane and a wrong position all show.

Life of a job here: SUBMITTED, INPUTS_READ, RETIRED (the device is through), DELIVERED (the host knows). A reset that
stops writes, or the end of what it belongs to, ends it earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calserve.runtime.sim.facts import DeviceFact, FactKind, RowFact
from calserve.simulate.oracle.answers import Answer, Answers
from calserve.simulate.oracle.findings import Findings
from calserve.simulate.oracle.jobs import BoardJob, BoardRow, names_of, place_of, short
from calserve.simulate.oracle.sessions import Sessions
from calserve.simulate.oracle.world import World

STOPS_WRITES = ("configuration", "chip", "board")
_CHIP = 1 << 20  # lanes of one chip in a key; more than a board has


@dataclass(slots=True)
class Seen:
    """Whom the account is about. find: a live answer by its request's name. ran: told an answer that a job names for
    the first time since it waited. lost: told one whose job failed or went away."""

    find: Callable[[str], Answer | None]
    ran: Callable[[Answer, int], None]
    lost: Callable[[Answer, int], None]


class Board:
    """Invariants: a job is in `_jobs` until it is through on both sides; `_writing` names only jobs in `_jobs`."""

    def __init__(self, world: World, findings: Findings, sessions: Sessions, answers: Answers, seen: Seen) -> None:
        self._world = world
        self._findings = findings
        self._sessions = sessions
        self._answers = answers
        self._seen = seen
        self._jobs: dict[int, BoardJob] = {}
        self._writing: dict[int, int] = {}  # (chip, lane) -> ticket
        self._untold: dict[tuple[str, int], int] = {}  # (session, lane) -> ticket whose end the host does not know
        self._unknown: dict[str, tuple[int, set[int]]] = {}  # session -> generation, lanes
        self._holders: dict[tuple[str, int, int], Answer] = {}  # (session, generation, lane)
        self._in_flight: dict[str, set[int]] = {}
        self._decode_jobs: dict[str, int] = {}  # so far, by session

    def take(self, fact: DeviceFact) -> None:
        match fact.kind:
            case FactKind.SUBMITTED:
                self._submitted(fact)
            case FactKind.INPUTS_READ:
                self._inputs_read(fact)
            case FactKind.RETIRED:
                self._retired(fact)
            case FactKind.DELIVERED:
                self._delivered(fact)
            case FactKind.RESET:
                self._reset(fact)
            case FactKind.CONFIGURED | FactKind.RELEASED:
                self._session_gone(fact.session, fact.at_ns)
            case FactKind.HOST_ENDED:
                self.host_ended(fact.at_ns)
            case _:
                pass

    @property
    def size(self) -> int:
        """Entries kept, for those who watch that memory stays bounded."""
        return len(self._jobs) + len(self._writing) + len(self._untold) + len(self._holders)

    # --- a job goes in ----------------------------------------------------------------------------------

    def _submitted(self, fact: DeviceFact) -> None:
        spec, at_ns = fact.spec, fact.at_ns
        assert spec is not None, "a submit comes with its job"
        job = BoardJob(fact.ticket, spec.job, spec.session, spec.generation, spec.graph, fact.chips, [], [])
        self._jobs[fact.ticket] = job
        self._sessions.job_began(job.session, job.ticket, at_ns)  # as things stood before: its rows may have waited
        self._check_in_flight(job, at_ns)
        is_own = spec.job <= self._world.last_own_job
        has_decode = False
        for row in spec.rows:
            answer = None if is_own else self._seen.find(row.request)
            seen = BoardRow(
                answer, row.request, row.lane, row.first_position, row.token_count, row.logits.value != "none", 0
            )
            job.rows.append(seen)
            self._check_lane(job, seen, row.kv_units, at_ns)
            if answer is not None:
                self._check_answer(job, seen, answer, at_ns)
            elif not is_own:
                self._add("I4", at_ns, f"{job} names lane {row.lane} for {row.request}, which is not live any more")
            is_decode = answer is not None and seen.first >= len(answer.request.prompt)
            has_decode = has_decode or is_decode
        if has_decode:
            self._decode_jobs[job.session] = self._decode_jobs.get(job.session, 0) + 1
        for row_seen in job.rows:
            for chip in fact.chips:
                key = chip * _CHIP + row_seen.lane
                job.keys.append(key)
                self._writing[key] = job.ticket
            self._untold[job.session, row_seen.lane] = job.ticket

    def _check_in_flight(self, job: BoardJob, at_ns: int) -> None:
        flying = self._in_flight.setdefault(job.session, set())
        flying.add(job.ticket)
        limit = self._sessions.get(job.session).limit
        if len(flying) > limit:
            others = sorted(flying - {job.ticket})
            self._add("I6", at_ns, f"{job} went in beside tickets {others}, and {limit} at once are proven")

    def _check_lane(self, job: BoardJob, row: BoardRow, units: tuple[int, ...], at_ns: int) -> None:
        lane, world = row.lane, self._world
        if not 0 <= lane < world.lanes_per_session:
            self._add("I4", at_ns, f"{names_of(job, row)}, and there are {world.lanes_per_session}")
        if world.lane_is_unit and units != (lane,):
            self._add("I2", at_ns, f"{names_of(job, row)} with units {units}, and unit i is lane i")
        for chip in job.chips:
            writer = self._jobs.get(self._writing.get(chip * _CHIP + lane, 0))
            if writer is None or (not writer.is_current and not world.judges_earlier_processes):
                continue
            self._add("I4", at_ns, f"{names_of(job, row)}, which {writer} may still write on chip {chip}")
            return
        untold = self._jobs.get(self._untold.get((job.session, lane), 0))
        if untold is not None and untold.is_current and untold.generation == job.generation:
            self._add("I4", at_ns, f"{names_of(job, row)} before the host was told the end of {untold}")
        generation, lanes = self._unknown.get(job.session, (0, ()))
        if generation == job.generation and lane in lanes:
            self._add("I4", at_ns, f"{names_of(job, row)}, which a failed job of this generation left unknown")

    def _check_answer(self, job: BoardJob, row: BoardRow, answer: Answer, at_ns: int) -> None:
        """Generation, position and holder; then the answer is this job's."""
        if answer.generation == 0:
            self._begin(job, row, answer, at_ns)
        elif answer.generation != job.generation or answer.session != job.session:
            self._check_restart(job, row, answer, at_ns)
            self._begin(job, row, answer, at_ns)
        elif answer.was_lost and row.first == 0 and self._world.lane_fault_isolation and not answer.is_seen:
            self._begin(job, row, answer, at_ns)
        elif answer.job:
            self._add("I3", at_ns, f"{place_of(job, row)} while ticket {answer.job} carries it too")
        elif answer.lane != row.lane:
            self._add("I2", at_ns, f"{place_of(job, row)}, and it held lane {answer.lane}")
        elif self._holders.get((job.session, job.generation, row.lane)) is not answer:
            holder = self._holders.get((job.session, job.generation, row.lane))
            self._add(
                "I2",
                at_ns,
                f"{place_of(job, row)}, and {holder.name if holder else 'nobody'} was given that lane since",
            )
        self._check_passed_over(row, answer, at_ns)
        if row.first != answer.committed or row.count < 1:
            self._add("I3", at_ns, f"{place_of(job, row)} for {row.count} tokens, and {answer.committed} are committed")
        length = len(answer.request.prompt)
        total = length + answer.request.max_new_tokens
        if row.first + row.count > min(self._world.context, max(length, total - 1)):
            self._add(
                "I3", at_ns, f"{place_of(job, row)} for {row.count} tokens, beyond what it may have ({total} in all)"
            )
        answer.job = job.ticket
        row.run = answer.run

    def _check_passed_over(self, row: BoardRow, answer: Answer, at_ns: int) -> None:
        """A row in the middle of its answer may be left out of so many decode jobs of its session, no more (I8)."""
        passed = self._decode_jobs.get(answer.session, 0) - answer.ready_at
        if row.first >= len(answer.request.prompt) and passed > self._world.passed_over_bound > 0:
            sentence = f"{row.name} on lane {row.lane} was left out of {passed} decode jobs of session {answer.session}"
            self._add("I8", at_ns, sentence)

    def _check_restart(self, job: BoardJob, row: BoardRow, answer: Answer, at_ns: int) -> None:
        where = f"{job}, {row.name}: begun in session {answer.session} generation {answer.generation}"
        if answer.is_seen:
            self._add("I5", at_ns, f"{where}, and its client has {answer.received} tokens of that")
        elif row.first:
            self._add("I5", at_ns, f"{where}, and goes on at position {row.first} elsewhere")
        elif answer.run > 1:
            self._add("I5", at_ns, f"{where}, and this is its third beginning")

    def _begin(self, job: BoardJob, row: BoardRow, answer: Answer, at_ns: int) -> None:
        answer.session, answer.generation, answer.lane = job.session, job.generation, row.lane
        answer.computed_before = answer.computed
        answer.committed = answer.computed = answer.job = 0
        answer.was_lost = False
        answer.run += 1
        self._holders[job.session, job.generation, row.lane] = answer
        self._seen.ran(answer, at_ns)

    # --- the device reads -------------------------------------------------------------------------------

    def _inputs_read(self, fact: DeviceFact) -> None:
        job = self._jobs.get(fact.ticket)
        if job is None:
            return
        read = {row.lane: row for row in fact.rows}
        if len(fact.rows) != len(job.rows) or len(read) != len(job.rows):
            lanes = [row.lane for row in fact.rows]
            told = [row.lane for row in job.rows]
            self._add("I4", fact.at_ns, f"{job} is of lanes {told}, and the device read lanes {lanes}")
        for row in job.rows:
            found = read.get(row.lane)
            if found is None:
                self._add("I4", fact.at_ns, f"{job}: the device read no row for lane {row.lane}, {row.name}")
            elif not self._is_as_told(row, found):
                self._add(
                    "I4",
                    fact.at_ns,
                    f"{job}, lane {row.lane}: {row.name} has {row.count} tokens from position {row.first}, and the "
                    f"device read {short(found.tokens)} at {short(found.positions)} into slot {found.slot}",
                )

    def _is_as_told(self, row: BoardRow, found: RowFact) -> bool:
        first, count = row.first, row.count
        if found.slot != first or found.length != first + count or len(found.tokens) != count:
            return False
        if count == 1:
            if found.positions != (first,):
                return False
        elif found.positions != tuple(range(first, first + count)):
            return False
        answer = row.answer
        if answer is None or answer.is_bad:
            return True
        prompt = answer.request.prompt
        if first + count <= len(prompt):
            return found.tokens == prompt[first : first + count]
        return first >= len(prompt) and all(
            self._answers.is_right(answer, first - len(prompt) + i, token) for i, token in enumerate(found.tokens)
        )

    # --- a job comes back -------------------------------------------------------------------------------

    def _retired(self, fact: DeviceFact) -> None:
        job = self._jobs.get(fact.ticket)
        if job is None:
            return
        job.is_retired = True
        job.is_sound = fact.code == 0 and fact.detail == "done"
        self._stop_writing(job)
        self._in_flight.get(job.session, set()).discard(job.ticket)
        for row in job.rows:
            answer = row.answer
            if answer is None or answer.run != row.run or answer.job != job.ticket:
                continue
            answer.job = 0
            if job.is_sound:
                answer.committed = row.first + row.count
        if job.is_sound:
            self._pay(job)
        else:
            self._failed(job, fact.at_ns)
        if not job.is_current:
            del self._jobs[job.ticket]

    def _failed(self, job: BoardJob, at_ns: int) -> None:
        if job.is_current:
            self._sessions.trouble(self._sessions.get(job.session), at_ns)
        if not self._world.lane_fault_isolation:
            generation, lanes = self._unknown.get(job.session, (0, set[int]()))
            if generation != job.generation:
                lanes = set()
            self._unknown[job.session] = (job.generation, lanes | {row.lane for row in job.rows})
        for row in job.rows:
            if row.answer is not None and row.answer.run == row.run:
                row.answer.was_lost = True
                self._seen.lost(row.answer, at_ns)

    def _pay(self, job: BoardJob) -> None:
        """What the job cost its requests, in units of a prompt token; unused rows are shared by all of its own."""
        weight = self._world.decode_cost_weight
        unused = max(0, self._world.graph_rows.get(job.graph, 0) - len(job.rows))
        share = weight * unused // len(job.rows) if job.rows else 0
        for row in job.rows:
            answer = row.answer
            if answer is not None:
                is_decode = row.first >= len(answer.request.prompt)
                answer.paid += share + (weight if is_decode else row.count)

    def _delivered(self, fact: DeviceFact) -> None:
        job = self._jobs.get(fact.ticket)
        if job is None or not job.is_current:
            return
        self._host_knows(job, fact.at_ns)
        if not job.is_retired:
            self._add("I4", fact.at_ns, f"{job} was delivered before it retired")
            return
        ready_at = self._decode_jobs.get(job.session, 0)
        for row in job.rows:
            answer = row.answer
            if job.is_sound and answer is not None and answer.run == row.run:
                answer.ready_at = ready_at
                answer.computed += row.wants_output
        del self._jobs[job.ticket]

    def _host_knows(self, job: BoardJob, at_ns: int) -> None:
        for row in job.rows:
            if self._untold.get((job.session, row.lane)) == job.ticket:
                del self._untold[job.session, row.lane]
        self._sessions.job_over(job.session, job.ticket, at_ns)

    def _stop_writing(self, job: BoardJob) -> None:
        writing = self._writing
        for key in job.keys:
            if writing.get(key) == job.ticket:
                del writing[key]

    # --- what ends more than one job --------------------------------------------------------------------

    def _reset(self, fact: DeviceFact) -> None:
        """Jobs on these chips end; those that are late write on unless the reset stops writes."""
        reached = set(fact.chips)
        stops = fact.detail in STOPS_WRITES
        for job in [job for job in self._jobs.values() if reached.intersection(job.chips)]:
            self._sessions.trouble(self._sessions.get(job.session), fact.at_ns)
            self._abandon(job, fact.at_ns)
            if stops:
                self._stop_writing(job)
                self._jobs.pop(job.ticket, None)

    def _session_gone(self, session: str, at_ns: int) -> None:
        """Configured anew or released: nobody waits for its old jobs, which may still write."""
        for job in [job for job in self._jobs.values() if job.session == session]:
            self._abandon(job, at_ns)
        self._unknown.pop(session, None)
        for key in [key for key in self._holders if key[0] == session]:
            del self._holders[key]

    def host_ended(self, at_ns: int) -> None:
        for job in list(self._jobs.values()):
            self._abandon(job, at_ns)
        self._unknown.clear()
        self._holders.clear()
        self._untold.clear()

    def _abandon(self, job: BoardJob, at_ns: int) -> None:
        """No host hears of it any more."""
        if not job.is_current:
            return
        job.is_current = False
        self._in_flight.get(job.session, set()).discard(job.ticket)
        self._host_knows(job, at_ns)
        for row in job.rows:
            answer = row.answer
            if answer is not None and answer.run == row.run and answer.job == job.ticket:
                answer.job = 0
                answer.was_lost = True
                self._seen.lost(answer, at_ns)
        if job.is_retired:
            self._jobs.pop(job.ticket, None)

    def _add(self, invariant: str, at_ns: int, sentence: str) -> None:
        self._findings.add(invariant, at_ns, f"at {at_ns}: {sentence}")
