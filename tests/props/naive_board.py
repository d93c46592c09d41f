"""A naive model of the engine: it knows only which events went in and which commands came out.

It shares no code with the engine and keeps no clever structure: a dict of requests, a dict of jobs, and what each
lane and unit was last seen doing. Every rule it holds is one of the invariants I1 to I6.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.core.board import SessionFacts
from calserve.core.commands import Command, Emit, Finish, ReleaseLane, SubmitJob, Validate
from calserve.core.job import JobSpec, LogitsWanted
from calserve.core.outcomes import FinishReason, RowEnd

STOPS = (RowEnd.EOS, RowEnd.STOP_TOKEN, RowEnd.STOP_STRING)


@dataclass
class Known:
    prompt: int
    asked: int | None
    tokens: int = 0  # in KV, by jobs that came back good
    generated: int = 0
    emits: int = 0
    lane: int | None = None
    units: tuple[int, ...] = ()
    stopped: bool = False
    broken: bool = False  # its last row was not usable
    generation: int = 0
    is_whole: bool = False  # its client sees nothing before the end
    has_started_over: bool = False  # after it was emitted

    @property
    def may_start_over(self) -> bool:
        return not self.emits or (self.is_whole and not self.has_started_over)

    def start_over(self) -> None:
        """It has nothing any more; where something was emitted this was its one time."""
        self.has_started_over = self.has_started_over or self.emits > 0
        self.tokens = self.generated = self.emits = 0


@dataclass
class NaiveBoard:
    facts: SessionFacts
    limit: int  # jobs in flight on one session
    live: dict[str, Known] = field(default_factory=dict)
    ended: dict[str, Finish] = field(default_factory=dict)
    jobs: dict[int, JobSpec] = field(default_factory=dict)
    retired: dict[int, JobSpec] = field(default_factory=dict)  # came back in this very call
    fenced_lanes: dict[int, set[int]] = field(default_factory=dict)  # by generation
    fenced_units: dict[int, set[int]] = field(default_factory=dict)
    doubted: set[str] = field(default_factory=set)  # sessions that may have one job at a time, until a load
    submitted: int = 0

    # --- facts going in ---------------------------------------------------------------------------------

    def submit(self, name: str, prompt: int, asked: int | None, *, is_whole: bool = False) -> None:
        if name not in self.live:
            self.submitted += 1
            self.live[name] = Known(prompt, asked, is_whole=is_whole)

    def done(self, spec: JobSpec, ends: tuple[RowEnd, ...]) -> None:
        if RowEnd.ERROR in ends and "lane_fault_isolation" not in self.facts.proven:
            self.spoilt(spec)
            return
        self._retire(spec)
        for row, end in zip(spec.rows, ends, strict=True):
            known = self.live.get(row.request)
            if known is None or known.lane != row.lane or known.tokens != row.first_position:
                continue
            known.tokens += row.token_count
            known.broken = end in (RowEnd.ERROR, RowEnd.UNUSABLE)
            if row.logits is LogitsWanted.LAST and not known.broken:
                known.generated += 1
                known.stopped = end in STOPS

    def spoilt(self, spec: JobSpec) -> None:
        """Nothing says that what spoilt one row stayed in it: none of them is delivered, their lanes are fenced."""
        self._retire(spec)
        self.retired = {}
        self.fence(spec)

    def unstarted(self, spec: JobSpec) -> None:
        self._retire(spec)

    def failed(self, spec: JobSpec) -> None:
        self._retire(spec)
        self.fence(spec)

    def fence(self, spec: JobSpec) -> None:
        self.fenced_lanes.setdefault(spec.generation, set()).update(row.lane for row in spec.rows)
        units = {unit for row in spec.rows for unit in row.kv_units}
        self.fenced_units.setdefault(spec.generation, set()).update(units)

    def _retire(self, spec: JobSpec) -> None:
        del self.jobs[spec.job]
        self.retired = {spec.job: spec}

    # --- orders coming out ------------------------------------------------------------------------------

    def hear(self, commands: list[Command]) -> None:
        # submits stand before ends, so what ended in this call is looked up first
        ended_now = {c.request for c in commands if isinstance(c, Finish)}
        for command in commands:
            match command:
                case SubmitJob(spec):
                    self._hear_job(spec, ended_now)
                case ReleaseLane():
                    self._hear_release(command)
                case Validate(session):
                    self.doubted.discard(session)
        for command in commands:
            match command:
                case Emit():
                    self._hear_emit(command)
                case Finish():
                    self._hear_end(command)
        self.retired = {}

    def _hear_release(self, command: ReleaseLane) -> None:
        for spec in self.jobs.values():
            lanes = [row.lane for row in spec.rows if spec.generation == command.generation]
            assert command.lane not in lanes, f"lane {command.lane} given back under job {spec.job}"

    def _hear_job(self, spec: JobSpec, ended_now: set[str]) -> None:
        assert spec.job not in self.jobs
        flying = [job for job in self.jobs.values() if job.session == spec.session]
        assert len(flying) < (1 if spec.session in self.doubted else self.limit), "too many jobs in flight"
        graph = next(g for g in self.facts.graphs if g.name == spec.graph)
        assert 1 <= len(spec.rows) <= graph.batch
        assert sum(row.token_count for row in spec.rows) <= graph.max_job_tokens
        for row in spec.rows:
            assert row.request in self.live, f"a job for {row.request}, which is not there"
            assert row.request not in ended_now, f"a job for {row.request}, which just ended"
            known = self.live[row.request]
            assert 1 <= row.token_count <= graph.max_row_tokens
            if row.first_position == 0 and known.tokens:
                assert known.may_start_over, f"{row.request} starts over after the client saw a token, or again"
                known.start_over()
            if row.first_position == 0:
                known.generation = spec.generation
            assert known.generation == spec.generation, f"{row.request} changed its generation"
            assert row.first_position == known.tokens, f"{row.request} is at {known.tokens}"
            known.lane, known.units = row.lane, row.kv_units
            self._check_row_length(known, row.first_position, row.token_count, row.logits)
            assert len(row.kv_units) * self.facts.unit_tokens >= row.first_position + row.token_count
        self._check_exclusive(spec, ended_now)
        self.jobs[spec.job] = spec

    def _check_row_length(self, known: Known, first: int, count: int, logits: LogitsWanted) -> None:
        if first >= known.prompt:
            assert count == 1
            assert first == known.prompt + known.generated - 1, "a decode at the wrong position"
        else:
            assert first + count <= known.prompt, "a chunk beyond the prompt"
        wants = LogitsWanted.LAST if first + count >= known.prompt else LogitsWanted.NONE
        assert logits is wants

    def _check_exclusive(self, spec: JobSpec, ended_now: set[str]) -> None:
        lanes = [row.lane for row in spec.rows]
        units = [unit for row in spec.rows for unit in row.kv_units]
        assert len(set(lanes)) == len(lanes), "two rows in one lane"
        assert len(set(units)) == len(units), "two rows share a unit"
        assert all(0 <= unit < self.facts.kv_units for unit in units)
        assert all(0 <= lane < self.facts.lanes for lane in lanes)
        for other in self.jobs.values():  # still on the device, whoever its rows belong to now
            if other.generation == spec.generation:
                assert not set(lanes) & {row.lane for row in other.rows}, "a lane the device still writes"
                assert not set(units) & {u for row in other.rows for u in row.kv_units}, "a unit still written"
        names = {row.request for row in spec.rows}
        for name, known in self.live.items():
            if name not in names and name not in ended_now and known.tokens and known.generation == spec.generation:
                assert known.lane not in lanes, f"lane of {name} taken"
                assert not set(known.units) & set(units), f"unit of {name} taken"
        assert not set(lanes) & self.fenced_lanes.get(spec.generation, set()), "a fenced lane"
        assert not set(units) & self.fenced_units.get(spec.generation, set()), "a fenced unit"

    def _hear_emit(self, command: Emit) -> None:
        spec = self.retired.get(command.job)
        assert spec is not None, "text of a job that did not just come back"
        assert spec.rows[command.row].request == command.request, "text of another row"
        known = self.live.get(command.request)
        assert known is not None, "text after the end"
        known.emits += 1

    def _hear_end(self, command: Finish) -> None:
        known = self.live.pop(command.request, None)
        assert known is not None, f"{command.request} ended twice or never came"
        assert command.usage.prompt_tokens == max(0, known.prompt)
        if command.reason is FinishReason.LENGTH:
            assert not known.stopped
            longest = min(self.facts.graphs[0].max_tokens, self.facts.kv_units * self.facts.unit_tokens)
            assert known.generated == (known.asked or longest - known.prompt)
        if command.reason is FinishReason.STOP:
            assert known.stopped
        if command.reason in (FinishReason.LENGTH, FinishReason.STOP):
            assert command.usage.completion_tokens == known.generated == known.emits
        assert (command.reason is FinishReason.REFUSED) == (command.refusal is not None)
        if command.reason is FinishReason.REFUSED:
            assert known.emits == 0 or known.is_whole, "refused after it was served"
        self.ended[command.request] = command

    def forget_restarts(self, generation: int | None) -> None:
        """A generation (None: every one) is gone: those that may start over hold nothing any more."""
        for known in self.live.values():
            if known.may_start_over and generation in (None, known.generation):
                known.start_over()
                known.lane, known.units = None, ()
