"""Mutants of `core`: wrong decisions.

A mutant is caught by the oracle alone: the runner takes the core's assertions out (`python -O`) and never scans its
invariants. Where a transition table would refuse the mutant's step first, the patch opens that as well: what is wanted
is that somebody who looks from outside sees the harm.
"""

from __future__ import annotations

from mutation import Mutant, Patch

# The ledger takes every step; so the harm is done, and somebody else has to see it.
_OPEN_LEDGER = Patch(
    "core/kv.py",
    "    step,\n)\n",
    ")\n\n\ndef step(table, state, event):\n    return table.get((state, event), state)\n",
)

CORE_MUTANTS = (
    Mutant(
        "no_fence_after_a_failed_job",
        "Nobody knows what a failed job wrote: its lanes serve nobody until the generation is rebuilt.",
        ("I4",),
        "own_trouble",
        (
            Patch(
                "core/flight.py",
                "            self._ledger.lose(txn)\n        del self.jobs[job.spec.job]",
                "            self._ledger.commit(txn)\n        del self.jobs[job.spec.job]",
            ),
        ),
    ),
    Mutant(
        "commit_before_wait",
        "KV is as long as the device has written it, not as long as it was asked to.",
        ("I3", "I4", "I7"),
        "cancels",
        (
            _OPEN_LEDGER,
            Patch(
                "core/flight.py",
                "                self._ledger.submit(txn)",
                "                self._ledger.submit(txn)\n                self._ledger.commit(txn)",
            ),
        ),
    ),
    Mutant(
        "lane_freed_twice",
        "A lane has one holder.",
        ("I2", "I3", "I4"),
        "calm",
        (
            _OPEN_LEDGER,
            Patch(
                "core/kv.py",
                "        heappush(self._free_lanes, lane.index)\n",
                "        heappush(self._free_lanes, lane.index)\n        heappush(self._free_lanes, lane.index)\n",
            ),
            Patch(
                "core/kv.py",
                "            self._free_units.remove(lane.index)\n            heapify(self._free_units)\n"
                "            lane.units.append(lane.index)\n",
                "            lane.units = [lane.index]\n",
            ),
            Patch("core/kv.py", "        if target > lane.reserved:\n", "        if False:\n"),
        ),
    ),
    Mutant(
        "lane_returned_while_a_job_writes_it",
        "A cancelled request's lane is free when the job that writes it has retired, not before.",
        ("I2", "I3", "I4", "I7"),
        "cancels",
        (
            _OPEN_LEDGER,
            Patch(
                "core/kv.py",
                "        if lane.state is LaneState.UPDATING:\n",
                "        if False:\n",
            ),
            Patch(
                "core/kv.py",
                "        lane.state = step(LANE_STEPS, lane.state, LaneEvent.RELEASE)\n",
                "        lane.state = LaneState.FREE\n",
            ),
        ),
    ),
    Mutant(
        "rows_told_to_the_wrong_requests",
        "Which row is whose was fixed when the job was launched.",
        ("I1", "I10"),
        "calm",
        (
            Patch(
                "core/retirement.py",
                "        self._out.emit(request.name, job.spec.job, index)\n",
                "        self._out.emit(request.name, job.spec.job, len(job.rows) - 1 - index)\n",
            ),
        ),
    ),
    Mutant(
        "dead_rows_are_told",
        "Whoever has ended hears nothing more.",
        ("I1",),
        "cancels",
        (
            Patch(
                "core/retirement.py",
                '                self._out.count("dropped_rows")\n',
                '                self._out.count("dropped_rows")\n'
                "                self._out.emit(job.rows[index][0].name, job.spec.job, index)\n",
            ),
        ),
    ),
    Mutant(
        "restart_after_output",
        "A request whose client has tokens is never begun again.",
        ("I5",),
        "exceptions",
        (
            Patch(
                "core/request.py",
                "        return self.deliveries > 0 and not self.is_whole\n",
                "        return False\n",
            ),
        ),
    ),
    Mutant(
        "tokens_of_the_first_try_count",
        "An answer that starts over is counted anew: its length, and what its client is told it used.",
        ("I10",),
        "exceptions_alone",
        (
            Patch(
                "core/roster.py",
                "        request.generated = request.deliveries = request.spent = 0\n",
                "        request.deliveries = request.spent = 0\n",
            ),
        ),
    ),
    Mutant(
        "restart_again_and_again",
        "A request starts over once.",
        ("I5",),
        "again",
        (
            Patch(
                "core/roster.py",
                "        if request.is_seen or request.restarted or not self.restarting:\n",
                "        if request.is_seen or not self.restarting:\n",
            ),
        ),
    ),
    Mutant(
        "nobody_is_told_of_the_exit",
        "Every client hears its end before the process goes.",
        ("I1",),
        "lost_for_good",
        (
            Patch(
                "core/supervisor.py",
                "            worker.roster.end_admitted(reason_told, failure)\n",
                "",
            ),
            Patch(
                "core/holding.py",
                "        self.worker.roster.end_admitted(FAULT_RULES[failure.fault].end, failure)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "in_flight_limit_ignored",
        "One job at a time once two were in doubt.",
        ("I6",),
        "exceptions_in_pairs",
        (
            Patch(
                "core/flight.py",
                "        return len(self.jobs) >= self._concurrency.allowed\n",
                "        return len(self.jobs) >= self._shape.max_in_flight\n",
            ),
        ),
    ),
    Mutant(
        "deadlines_not_kept",
        "A request ends by its deadline.",
        ("I7", "I11"),
        "calm",
        (
            Patch(
                "core/deadlines.py",
                "        heappush(self._heap, (request.deadline_ns, request.ordinal, request))\n",
                "",
            ),
        ),
    ),
    Mutant(
        "cancels_not_heard",
        "A request ends when its client asks.",
        ("I11",),
        "calm",
        (
            Patch(
                "core/roster.py",
                "        self.end(request, FinishReason.CANCELLED)\n        return True\n",
                "        return True\n",
            ),
        ),
    ),
    Mutant(
        "no_work_after_a_job",
        "The board never stands idle beside work: whoever became ready goes at once.",
        ("I8",),
        "calm",
        (
            Patch(
                "core/engine.py",
                "            for session in sessions:\n                session.work(now_ns)\n",
                "            for session in sessions:\n"
                "                if not isinstance(event, JobDone):\n"
                "                    session.work(now_ns)\n",
            ),
        ),
    ),
    Mutant(
        "back_off_without_an_alarm",
        "A pause after a refusal has an end that somebody wakes up for.",
        ("I8",),
        "busy",
        (
            Patch(
                "core/worker.py",
                "        own = (self.window_ns, self.retry_at_ns, self.overdue_until_ns, kv_again_ns)\n",
                "        own = (self.window_ns, self.overdue_until_ns, kv_again_ns)\n",
            ),
        ),
    ),
    Mutant(
        "weights_ignored",
        "Tenants that wait share the board by their weights.",
        ("I9",),
        "tenants",
        (
            Patch(
                "core/fairness.py",
                "        return start, start + cost * SCALE // tenant.weight\n",
                "        return start, start + cost * SCALE\n",
            ),
            Patch(
                "core/fairness.py",
                "        tenant.virtual += (spent - charged) * SCALE // tenant.weight\n",
                "        tenant.virtual += (spent - charged) * SCALE\n",
            ),
        ),
    ),
    Mutant(
        "idle_tenant_hoards_credit",
        "Who had nobody waiting joins those who wait, and does not make good what it had no use for.",
        ("I9",),
        "tenants_by_turns",
        (
            Patch(
                "core/fairness.py",
                "            tenant.virtual = max(tenant.virtual, self.virtual)\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "lane_cap_ignored",
        "A tenant has no more than its part of the lanes while another one waits.",
        ("I9",),
        "tenants_with_caps",
        (
            Patch(
                "core/admission.py",
                "        key = (tenant.active >= cap, finish, request.ordinal)\n",
                "        key = (tenant.active > cap + lanes, finish, request.ordinal)\n",
            ),
        ),
    ),
    Mutant(
        "too_long_admitted",
        "What cannot end within the context is refused before it begins.",
        ("I3", "I7"),
        "calm",
        (
            Patch(
                "core/admission.py",
                "    if total > shape.context:\n",
                "    if False:\n",
            ),
            Patch(
                "core/admission.py",
                "    if total > shape.kv_tokens:\n",
                "    if False:\n",
            ),
        ),
    ),
    Mutant(
        "smaller_reset_after_a_lost_job",
        "A job that never came back may write still: only a reset that is known to stop writes ends that.",
        ("I4",),
        "late",
        (
            Patch(
                "core/resets.py",
                "LADDER if recovery.wish is not Wish.RESET_LOST else (ResetScope.CHIP,)\n",
                "LADDER\n",
            ),
        ),
    ),
    Mutant(
        "overdue_jobs_waited_for_without_end",
        "An overdue job has a bounded grace, then its session recovers.",
        ("I11",),
        "lost",
        (
            Patch(
                "core/session.py",
                "        if due is not None and now_ns >= due:\n",
                "        if False:\n",
            ),
            Patch(
                "core/worker.py",
                "            self.overdue_until_ns = now_ns + self.config.overdue_grace_ns\n",
                "            self.overdue_until_ns = now_ns + (1 << 60)\n",
            ),
        ),
    ),
    Mutant(
        "unsubmitted_job_committed",
        "A job that never reached the device wrote nothing.",
        ("I3", "I4", "I8"),
        "busy",
        (
            Patch(
                "core/kv.py",
                "        lane.state = step(LANE_STEPS, lane.state, LaneEvent.ROLL_BACK)\n",
                "        lane.state = step(LANE_STEPS, lane.state, LaneEvent.ROLL_BACK)\n"
                "        lane.committed = txn.target\n",
            ),
        ),
    ),
    Mutant(
        "handed_over_and_forgotten",
        "Who goes to a sibling stands in its line.",
        ("I1", "I8", "I11"),
        "exceptions",
        (
            Patch(
                "core/roster.py",
                "            to.accept(request.as_submitted, self._out.now_ns, restarted=request.restarted)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "full_too_early",
        "A refusal names a limit that was reached.",
        ("I12",),
        "one_session",
        (
            Patch(
                "core/admission.py",
                "config.max_waiting_requests, line.requests + 1)",
                "config.max_waiting_requests, line.requests * 2 + 1)",
            ),
        ),
    ),
    Mutant(
        "text_after_its_stop",
        "A request that reached its stop ends there.",
        ("I10",),
        "calm",
        (
            Patch(
                "core/retirement.py",
                "        is_stop = result.end in _STOPS\n",
                "        is_stop = result.end is RowEnd.EOS\n",
            ),
        ),
    ),
)
