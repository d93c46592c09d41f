"""One session's work: who gets a lane, what the next job is, when it goes.

Owns: the valves (`admitting` lets heads of the line into lanes, `submitting` lets jobs out; the session turns them, and
an overdue job shuts both), the turns between queues, the batching window, the backoff after a transient refusal. Must
not know: another session, the lifecycle, tokens, text.

Life: `open` when a generation is Ready; after every event `run` fills free lanes and launches jobs until the board
has what it may have; `close` when the generation is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from calserve.core.admission import blocker, choose_head, lane_cap
from calserve.core.concurrency import Concurrency, Doubt
from calserve.core.config import SchedulerConfig
from calserve.core.events import JobDone
from calserve.core.faults import FAULT_RULES, AdmissionEffect, JobEffect
from calserve.core.features import features_of, without_feature
from calserve.core.flight import Flight, Job
from calserve.core.kv import KvLedger
from calserve.core.outbox import Outbox
from calserve.core.outcomes import KV_STAGE, Failure
from calserve.core.plan import Plan, Policy, plan_job
from calserve.core.queues import Turns
from calserve.core.request import Request
from calserve.core.retirement import Retirement
from calserve.core.roster import Roster, Serving
from calserve.core.shape import Shape
from calserve.core.states import LaneState, RequestEvent


class Worker:
    """Called only by its session."""

    def __init__(
        self,
        session: str,
        config: SchedulerConfig,
        outbox: Outbox,
        numbers: Callable[[], int],
        concurrency: Concurrency,
    ) -> None:
        self.session = session
        self.config = config
        self._out = outbox
        self._numbers = numbers
        self.concurrency = concurrency
        self.roster = Roster(config, outbox)
        self._retirement = Retirement(config, outbox, self.roster)
        self._turns = Turns(config)
        self.admitting = False
        self.submitting = False
        self.overdue_until_ns: int | None = None  # a job is overdue: nothing more goes in, and this ends its grace
        self.features_off: tuple[str, ...] = ()  # what the board does not support after all, in this generation
        self.waiting_reason = ""
        self._blocked: Request | None = None  # the head of the line that found no room
        self.retry_at_ns: int | None = None  # after a transient refusal nothing is submitted until then
        self.window_ns: int | None = None  # the batching window open now ends here
        self._window_opened_ns: int | None = None
        self._retries = 0
        self._kv_blocked = False
        self._kv_refused_ns = -1  # when the board last had no room for KV
        self.kv_again_ns: int | None = None  # when it is asked again although we hold nothing that could be released
        self._missed_ns = -1  # when a job last missed its queue deadline
        self._last_done_ns = 0
        self._decode_jobs = 0
        self._prefill_went_last = False

    # --- generations ------------------------------------------------------------------------------------

    def open(self, generation: int, shape: Shape) -> None:
        ledger = KvLedger(
            shape.lanes,
            shape.kv_units,
            shape.unit_tokens,
            shape.lane_is_unit,
            on_free=lambda lane: self._lane_freed(generation, lane),
        )
        self.concurrency.open(shape.max_in_flight)
        whose = (self.session, generation)
        flight = Flight(whose, self.config, shape, ledger, self.concurrency, self._numbers)
        self.admitting = self.submitting = True
        self._retries = 0
        self.kv_released()
        self._kv_refused_ns = -1
        self.features_off = ()
        self.roster.open(Serving(generation, shape, ledger, flight))

    def close(self) -> None:
        """Its jobs retired or were quarantined."""
        self.turn_valves(admitting=False, submitting=False)
        self.retry_at_ns = self.window_ns = self._window_opened_ns = self.kv_again_ns = None
        self._blocked = None
        self.roster.close()

    def turn_valves(self, *, admitting: bool, submitting: bool) -> None:
        self.admitting, self.submitting = admitting, submitting
        if not submitting:
            self.overdue_until_ns = None  # a drain that lets nothing run has a grace of its own

    @property
    def is_admitting(self) -> bool:
        return self.admitting and self.overdue_until_ns is None

    @property
    def serving(self) -> Serving | None:
        return self.roster.serving

    @property
    def in_flight(self) -> int:
        return len(self.serving.flight.jobs) if self.serving is not None else 0

    # --- jobs come back ---------------------------------------------------------------------------------

    def find_job(self, number: int) -> Job | None:
        return self.serving.flight.jobs.get(number) if self.serving is not None else None

    def job_submitted(self, job: Job) -> None:
        if self.serving is not None:
            self.serving.flight.submitted(job)

    def job_done(self, job: Job, event: JobDone, now_ns: int) -> Failure | None:
        """Returns a failure when a row's output was not usable."""
        assert self.serving is not None
        suspect = self._retirement.done(self.serving, job, event, now_ns, self._decode_jobs)
        self._retries = 0
        self.retry_at_ns = None
        if self.concurrency.allowed > 1:
            took_ns = event.device_ns or now_ns - max(job.started_ns, self._last_done_ns)
            self.concurrency.note_step(took_ns, job.expected_ns, had_company=job.had_company)
            if suspect is not None and job.had_company:
                self.concurrency.lower(Doubt.OUTPUT)
        self._last_done_ns = now_ns
        self._job_returned()
        return suspect

    def job_lost(self, job: Job, failure: Failure) -> None:
        """The board gave up on it without ever saying that it is over: fenced, and its clients told at once."""
        assert self.serving is not None
        self._retirement.failed(self.serving, job, failure, has_ended=False)
        self._job_returned()

    def job_failed(self, job: Job, failure: Failure, now_ns: int) -> bool:
        """Its lanes are fenced. Returns True when the board kept refusing past the bound."""
        assert self.serving is not None
        rule = FAULT_RULES[failure.fault]
        if rule.admission is AdmissionEffect.FEATURE_OFF:
            self._switch_off(self.serving, job)
        self._retirement.failed(self.serving, job, failure)
        self._job_returned()
        return rule.admission is AdmissionEffect.REDUCE and self._back_off(now_ns)

    def job_overdue(self, job: Job, now_ns: int) -> None:
        """Nothing more goes in; everything is kept. If the job comes back within the grace, all goes on as before:
        serving, or a drain that began meanwhile."""
        job.is_overdue = True
        self.concurrency.note_refusal(now_ns)
        if self.submitting and self.overdue_until_ns is None:
            self.overdue_until_ns = now_ns + self.config.overdue_grace_ns

    def lose_jobs(self) -> None:
        """None of those in flight came back: their lanes are fenced, and how it ends is uncertain."""
        assert self.serving is not None
        self._out.count("lost_jobs", self.serving.flight.quarantine_all())
        self.concurrency.lower(Doubt.RECOVERY)

    def _job_returned(self) -> None:
        """When none is overdue any more, the valves open again."""
        if self.overdue_until_ns is None or self.serving is None:
            return
        if not any(job.is_overdue for job in self.serving.flight.jobs.values()):
            self.overdue_until_ns = None

    def job_unstarted(self, job: Job, failure: Failure, now_ns: int) -> bool:
        """Returns True when the board kept refusing past the bound."""
        assert self.serving is not None
        rule = FAULT_RULES[failure.fault]
        # without the feature the same rows are another job, which the board may take
        is_other_job = rule.admission is AdmissionEffect.FEATURE_OFF and self._switch_off(self.serving, job)
        requests = self._retirement.unstarted(self.serving, job)
        self._job_returned()
        if rule.job is JobEffect.FAIL:
            # where a recovery follows, the drain tells them, or they start over
            if not rule.may_restart and not is_other_job:
                for request in requests:
                    self.roster.end(request, rule.end, failure=failure)
            return False
        starters = [request for request in requests if request.committed == 0]
        if failure.stage == KV_STAGE and starters and self.is_admitting:
            self._await_kv(starters, now_ns)
            return False
        return self._back_off(now_ns)

    def job_missed(self, job: Job, now_ns: int) -> None:
        """The host was late: the board refused nothing, and the rows may go at once in whatever is planned next. Late
        again at the same instant, they pause, or it would never end."""
        assert self.serving is not None
        self._retirement.unstarted(self.serving, job)
        self._job_returned()
        if self._missed_ns == now_ns and self.retry_at_ns is None:
            self.retry_at_ns = now_ns + self.config.backoff_ns(1)
        self._missed_ns = now_ns

    def _switch_off(self, serving: Serving, job: Job) -> bool:
        """The board does not support something the job used: this generation does without. False when the job was as
        plain as a job can be."""
        used = features_of(job)
        if not used:
            return False
        feature = next((one for one in used if one not in self.features_off), None)
        if feature is not None:
            self.features_off = (*self.features_off, feature)
            self._out.count("features_off")
            self.roster.serving = without_feature(serving, feature)
            if feature == "second_job":
                self.concurrency.lower(Doubt.UNSUPPORTED)
        return True

    def _await_kv(self, starters: list[Request], now_ns: int) -> None:
        """Those that had just begun go back to the line until the board says it has room, or we made some.

        The rows that remain may go at once, but not on and on: refused again at the same instant, they pause.
        """
        for request in reversed(starters):
            self.roster.send_back(request)
        self._kv_blocked = True  # after their own lanes were freed: that room was not enough
        if self._kv_refused_ns == now_ns and len(self.roster.ready):
            self.retry_at_ns = now_ns + self.config.backoff_ns(1)
        self._kv_refused_ns = now_ns

    def _ensure_kv_wake_up(self, now_ns: int) -> None:
        """Who waits for KV has a lane of ours to wait for, or a time. Looked at after every event, for a lane that
        was to be released may be fenced meanwhile."""
        if self._kv_blocked and self.kv_again_ns is None and not self.holds_kv:
            self.kv_again_ns = now_ns + self.config.kv_retry_ns

    @property
    def holds_kv(self) -> bool:
        """Whether a lane of ours will be released some day; a fenced one only goes with its generation."""
        assert self.serving is not None
        return any(lane.state not in (LaneState.FREE, LaneState.UNKNOWN) for lane in self.serving.ledger.lanes)

    def somebody_came(self) -> None:
        """A wake-up like any other: what was refused while nothing of ours could be released is tried once more."""
        if self.kv_again_ns is not None:
            self.kv_released()

    def _lane_freed(self, generation: int, lane: int) -> None:
        self.kv_released()
        self._out.release_lane(self.session, generation, lane)

    def kv_released(self) -> None:
        self._kv_blocked = False
        self.kv_again_ns = None

    def _back_off(self, now_ns: int) -> bool:
        self._retries += 1
        self._out.count("transient_retries")
        self.concurrency.note_refusal(now_ns)
        if self._retries > self.config.max_transient_retries:
            return True
        self.retry_at_ns = now_ns + self.config.backoff_ns(self._retries)
        return False

    # --- jobs go out ------------------------------------------------------------------------------------

    def run(self, now_ns: int) -> None:
        """Fill free lanes, then launch jobs until the board has what it may have."""
        serving = self.serving
        if serving is None:
            self.waiting_reason = "model" if self.roster.line.requests else ""
            return
        if self.retry_at_ns is not None and now_ns >= self.retry_at_ns:
            self.retry_at_ns = None
        if self.kv_again_ns is not None and now_ns >= self.kv_again_ns:
            self.kv_released()
        self._admit(serving, now_ns)
        self._ensure_kv_wake_up(now_ns)
        ready = self.roster.ready
        is_shut = not self.submitting or self.overdue_until_ns is not None
        if is_shut or self.retry_at_ns is not None or not len(ready):
            self.window_ns = self._window_opened_ns = None
            return
        while not serving.flight.is_full and len(ready):
            if self._hold_for_window(serving, now_ns):
                return
            plan = plan_job(ready, self._turns, serving.shape, self._policy(serving))
            if plan is None:
                return
            self._launch(serving, plan, now_ns)

    def _admit(self, serving: Serving, now_ns: int) -> None:
        self.waiting_reason = ""
        self._blocked = None
        while self.roster.line.requests:
            head, self.waiting_reason = self._head(serving)
            if self.waiting_reason or head is None:
                self._blocked = head
                return
            self.roster.give_lane(head, serving, now_ns)

    def _head(self, serving: Serving) -> tuple[Request | None, str]:
        """The next one in, and why not now ("" when it can go)."""
        roster = self.roster
        if not self.is_admitting:
            return None, "paused"
        if self.retry_at_ns is not None:
            return None, "backing_off"
        if self._kv_blocked:
            return None, "kv_released"
        head, reason = choose_head(self.config, roster.line, roster.clock, roster.active_long, serving.shape.lanes)
        return head, (blocker(serving.ledger, head) if head is not None else reason)

    @property
    def is_cramped(self) -> bool:
        """Whether fenced lanes leave too little: half of the lanes are gone, or the head of the line would not find
        room in what is left even if everyone else had ended."""
        if self.serving is None or not self.serving.ledger.fenced:
            return False
        ledger, head = self.serving.ledger, self._blocked
        if 2 * ledger.fenced >= len(ledger.lanes):
            return True
        return head is not None and not ledger.fits_healthy(head.total_tokens)

    def _policy(self, serving: Serving) -> Policy:
        return Policy(
            lane_cap=lane_cap(self.config, serving.shape.max_rows),
            step=self._decode_jobs,
            decode_next=self._prefill_went_last,
            decodes_elsewhere=any(job.decodes for job in serving.flight.jobs.values()),
        )

    def _launch(self, serving: Serving, plan: Plan, now_ns: int) -> None:
        for planned in plan.rows:
            planned.request.move(RequestEvent.START)
            self.roster.ready.discard(planned.request)
        job = serving.flight.launch(plan, now_ns)
        if plan.decodes:
            self._decode_jobs += 1
        self._prefill_went_last = plan.decodes == 0
        self.window_ns = self._window_opened_ns = None
        out = self._out
        out.submit(job.spec)
        out.count("jobs")
        out.count("decode_rows", plan.decodes)
        out.count("prefill_tokens", job.prefill_tokens)
        out.count("padding_rows", job.padding)

    def _hold_for_window(self, serving: Serving, now_ns: int) -> bool:
        """Whether to wait for more rows (seed 002, section 7.2): never past the earliest deadline, never forever.

        Only beginners wait, and only while a row could still join them. Rows in the middle of an answer never do:
        whoever comes later joins at their next step, so waiting would slow every step and gain nothing.
        """
        length = self.config.batching_window_ns
        if length == 0:
            return False
        if self._window_opened_ns is None:
            self._window_opened_ns = now_ns
        ready, shape = self.roster.ready, serving.shape
        if len(ready) >= min(shape.max_rows, shape.lanes) or not self._could_join(serving):
            return False
        if any(request.committed for request in ready):
            return False
        step_ns = shape.expected_ns(shape.decode[-1], len(ready), 0)
        latest = min(request.deadline_ns for request in ready) - step_ns
        until = min(self._window_opened_ns + length, latest)
        self.window_ns = until if until > now_ns else None
        return self.window_ns is not None

    def _could_join(self, serving: Serving) -> bool:
        """Whether anyone may become ready soon: out of a job in flight, or by coming into a lane that is free.

        Nobody overtakes a head that waits for room, so then nobody comes in either.
        """
        if serving.flight.jobs:
            return True
        is_open = self.is_admitting and self.waiting_reason not in ("lanes", "kv_units", "kv_released")
        return is_open and serving.ledger.can_reserve(1)

    def next_deadline_ns(self) -> int | None:
        kv_again_ns = self.kv_again_ns if self.roster.line.requests else None
        own = (self.window_ns, self.retry_at_ns, self.overdue_until_ns, kv_again_ns)
        times = (self.roster.deadlines.next_ns(), *own)
        return min((t for t in times if t is not None), default=None)
