"""The mutants of the soak: one guard taken out of the production code each, and who must notice.

Owns: the patches (file under `src/calserve`, exact text before and after), the seeds under which each is caught, and
the invariants that may catch it. Must not know: how a patch is applied, or run.

A mutant is caught by the oracle alone: the runner takes the core's assertions out (`python -O`) and never scans its
invariants. Where a transition table of the core would refuse the mutant's step first, the patch opens that as well:
what is wanted is that somebody who looks from outside sees the harm.
"""

from __future__ import annotations

from dataclasses import dataclass

CORE = "core/"
EXECUTOR = "executor/"


@dataclass(frozen=True)
class Patch:
    """old stands in `file` exactly once."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """caught_by: invariants one of whose violations is the first. why: what the guard is there for."""

    name: str
    why: str
    caught_by: tuple[str, ...]
    seeds: tuple[int, ...]
    patches: tuple[Patch, ...]
    plan: str = ""


MUTANTS = (
    Mutant(
        "no_fence_after_a_failed_job",
        "Nobody knows what a failed job wrote: its lanes serve nobody until the generation is rebuilt.",
        ("I4",),
        (),
        (
            Patch(
                "core/flight.py",
                "            self._ledger.lose(txn)\n        del self.jobs[job.spec.job]",
                "            self._ledger.commit(txn)\n        del self.jobs[job.spec.job]",
            ),
        ),
    ),
    Mutant(
        "no_check_of_the_generation",
        "A completion of a generation that is gone says nothing of the job that is waited for.",
        ("I4", "I10"),
        (),
        (
            Patch(
                "executor/completion.py",
                "    if status is not None and status.generation < spec.generation:\n",
                "    if False:\n",
            ),
            Patch(
                "executor/completion.py",
                "status.ticket == job.ticket and status.generation == job.spec.generation",
                "status.generation < job.spec.generation or status.ticket == job.ticket",
            ),
        ),
    ),
    Mutant(
        "commit_before_wait",
        "KV is as long as the device has written it, not as long as it was asked to.",
        ("I3", "I4"),
        (),
        (
            Patch(
                "core/flight.py",
                "                self._ledger.submit(txn)",
                "                self._ledger.submit(txn)\n                self._ledger.commit(txn)",
            ),
            Patch(
                "core/flight.py",
                "            self._ledger.commit(txn)\n        del",
                "            txn.state is KvTxnState.COMMITTED or self._ledger.commit(txn)\n        del",
            ),
        ),
    ),
    Mutant(
        "lane_freed_twice",
        "A lane has one holder.",
        ("I2", "I4"),
        (),
        (
            Patch(
                "core/kv.py",
                "        heappush(self._free_lanes, lane.index)\n",
                "        heappush(self._free_lanes, lane.index)\n        heappush(self._free_lanes, lane.index)\n",
            ),
            Patch(
                "core/kv.py",
                "        lane.state = step(LANE_STEPS, lane.state, LaneEvent.RESERVE)\n",
                "        lane.state = LaneState.RESERVED\n",
            ),
            Patch(
                "core/kv.py",
                "            self._free_units.remove(lane.index)\n            heapify(self._free_units)\n"
                "            lane.units.append(lane.index)\n",
                "            lane.units = [lane.index]\n",
            ),
        ),
    ),
    Mutant(
        "lane_returned_while_a_job_writes_it",
        "A cancelled request's lane is free when the job that writes it has retired, not before.",
        ("I2", "I4"),
        (),
        (
            Patch(
                "core/kv.py",
                "        if lane.state is LaneState.UPDATING:\n"
                "            lane.state = step(LANE_STEPS, lane.state, LaneEvent.ABANDON)\n"
                '            lane.holder = ""\n',
                "        if lane.state is LaneState.UPDATING:\n"
                "            lane.state = LaneState.ACTIVE\n"
                "            self._free(lane)\n",
            ),
            Patch(
                "core/kv.py",
                "        if lane.state is LaneState.RELEASING:\n            self._free(lane)\n            return\n"
                "        lane.state = step(LANE_STEPS, lane.state, LaneEvent.COMMIT)\n",
                "        if lane.state is not LaneState.UPDATING:\n            return\n"
                "        lane.state = step(LANE_STEPS, lane.state, LaneEvent.COMMIT)\n",
            ),
        ),
    ),
    Mutant(
        "code_trusted_without_the_status",
        "A wait that succeeds may tell of a job that did not: code and status are judged together.",
        ("I4", "I10"),
        (),
        (
            Patch(
                "executor/completion.py",
                "    if status.status is not StatusKind.DONE:\n",
                "    if False:\n",
            ),
        ),
    ),
    Mutant(
        "completion_of_another_job_taken",
        "A completion that names another job proves nothing of the one waited for.",
        ("I4", "I10"),
        (),
        (
            Patch(
                "executor/completion.py",
                "    return status.ticket == job.ticket and status.generation == job.spec.generation\n",
                "    return True\n",
            ),
        ),
    ),
    Mutant(
        "logits_not_looked_at",
        "A NaN wins every argmax: logits that are not finite name no token.",
        ("I10",),
        (),
        (
            Patch(
                "sampling/sampler.py",
                "        if not np.isfinite(row[winner]):\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "short_output_taken_for_whole",
        "An output shorter than its contract is refused, whatever can be read of it.",
        ("I10",),
        (),
        (
            Patch(
                "executor/logits.py",
                "    if fault is not None:\n        return fault\n",
                "",
            ),
            Patch(
                "sampling/sampler.py",
                "        if row.size != self._vocab_size:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "buffers_given_out_while_submitted",
        "Memory the device is to read or write belongs to one job until that has retired.",
        ("I4", "I10"),
        (),
        (
            Patch(
                "executor/pool.py",
                "        lease = ready.pop() if ready else self._allocate(key)\n",
                "        lease = ready[-1] if ready else self._allocate(key)\n",
            ),
            Patch(
                "executor/pool.py",
                "        self.state = step(BUFFER_STEPS, self.state, event)\n",
                "        self.state = BUFFER_STEPS.get((self.state, event), self.state)\n",
            ),
            Patch(
                "executor/pool.py",
                "        after = step(BUFFER_STEPS, lease.state, event)",
                "        after = BUFFER_STEPS.get((lease.state, event), BufferState.FREE)",
            ),
        ),
    ),
    Mutant(
        "slices_left_on_buffers",
        "Slices are undone before buffers are reset, or no buffers come back.",
        ("I7", "I8", "liveness"),
        (),
        (
            Patch(
                "executor/pool.py",
                "lease.buffers.undo_slices() or lease.buffers.reset()",
                "lease.buffers.reset()",
            ),
        ),
    ),
    Mutant(
        "rows_swapped_at_retirement",
        "Row i of the output belongs to row i of the job.",
        ("I10",),
        (),
        (
            Patch(
                "executor/completion.py",
                "    rows = [at for at in index if at is not None]\n",
                "    rows = [at for at in index if at is not None][::-1]\n",
            ),
        ),
    ),
    Mutant(
        "rows_told_to_the_wrong_requests",
        "Which row is whose was fixed when the job was launched.",
        ("I1", "I10"),
        (),
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
        (),
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
        ("I5", "I10"),
        (),
        (
            Patch(
                "core/roster.py",
                "        if request.deliveries or request.restarted or not self.restarting:\n",
                "        if request.restarted or not self.restarting:\n",
            ),
        ),
    ),
    Mutant(
        "restart_again_and_again",
        "A request starts over once.",
        ("I5",),
        (),
        (
            Patch(
                "core/roster.py",
                "        if request.deliveries or request.restarted or not self.restarting:\n",
                "        if request.deliveries or not self.restarting:\n",
            ),
        ),
    ),
    Mutant(
        "nobody_is_told_of_the_exit",
        "Every client hears its end before the process goes.",
        ("I1",),
        (),
        (
            Patch(
                "core/supervisor.py",
                "            worker.roster.end_admitted(reason_told, failure)\n",
                "",
            ),
            Patch(
                "core/session.py",
                "        self.worker.roster.end_admitted(FAULT_RULES[failure.fault].end, failure)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "in_flight_limit_ignored",
        "One job at a time once two were in doubt.",
        ("I6",),
        (),
        (
            Patch(
                "core/flight.py",
                "        return len(self.jobs) >= self._concurrency.allowed\n",
                "        return len(self.jobs) >= self._shape.max_in_flight\n",
            ),
        ),
    ),
    Mutant(
        "tokens_one_position_behind",
        "A decode carries the newest token.",
        ("I4",),
        (),
        (
            Patch(
                "executor/sequence.py",
                "            first -= len(prompt)\n",
                "            first = max(0, first - len(prompt) - 1)\n",
            ),
        ),
    ),
    Mutant(
        "positions_one_too_high",
        "A token's position is its place in the sequence.",
        ("I4",),
        (),
        (
            Patch(
                "runtime/encoding.py",
                "np.arange(row.first_position, row.first_position + n)\n",
                "np.arange(row.first_position, row.first_position + n) + (row.first_position > 0)\n",
            ),
        ),
    ),
    Mutant(
        "output_index_one_too_high",
        "The draw of output i is number i of the request's stream.",
        ("I10",),
        (),
        (
            Patch(
                "executor/completion.py",
                "[len(s.generated) for s in sequences]",
                "[len(s.generated) + 1 for s in sequences]",
            ),
        ),
    ),
    Mutant(
        "deadlines_not_kept",
        "A request ends by its deadline.",
        ("I11",),
        (),
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
        (),
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
        (),
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
        (),
        (
            Patch(
                "core/worker.py",
                "        own = (self.window_ns, self.retry_at_ns, self.overdue_until_ns, kv_again_ns)\n",
                "        own = (self.window_ns, self.overdue_until_ns, kv_again_ns)\n",
            ),
        ),
    ),
    Mutant(
        "lanes_not_released_on_the_device",
        "The device's view of KV follows ours: a lane that is free here is free there.",
        ("I7", "I8", "I11"),
        (),
        (
            Patch(
                "executor/engine_step.py",
                "        if port.release_lane(command.lane):\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "weights_ignored",
        "Tenants that wait share the board by their weights.",
        ("I9",),
        (),
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
        plan="fair",
    ),
    Mutant(
        "too_long_admitted",
        "What cannot end within the context is refused before it begins.",
        ("I3", "I7"),
        (),
        (
            Patch(
                "core/admission.py",
                "    if total > shape.context:\n",
                "    if False:\n",
            ),
            Patch(
                "core/admission.py",
                "    if prompt_tokens > shape.max_prompt:\n",
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
        "no_reset_after_a_lost_job",
        "A job that never came back may write still: only a proven reset ends that, not a new generation.",
        ("I4",),
        (),
        (
            Patch(
                "core/supervisor.py",
                "        if recovery.wish is Wish.REBUILD:\n            if not recovery.was_rebuilt(",
                "        if recovery.wish is Wish.RESET_LOST:\n"
                "            recovery.reset_granted(ResetScope.SESSION)\n"
                "            session.come_back()\n"
                "            return\n"
                "        if recovery.wish is Wish.REBUILD:\n            if not recovery.was_rebuilt(",
            ),
        ),
    ),
    Mutant(
        "leftovers_of_an_earlier_process_ignored",
        "What an earlier process submitted still writes lanes of the new one.",
        ("I4",),
        (),
        (
            Patch(
                "executor/opening.py",
                "    if not left:\n",
                "    if True:\n",
            ),
        ),
    ),
    Mutant(
        "overdue_jobs_waited_for_without_end",
        "An overdue job has a bounded grace, then its session recovers.",
        ("I11",),
        (),
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
        "released_while_jobs_run",
        "While a job is on the device nothing is released or reset.",
        ("I4", "I7"),
        (),
        (
            Patch(
                "core/drain.py",
                "        if worker.in_flight == 0:\n",
                "        if True:\n",
            ),
        ),
    ),
    Mutant(
        "unsubmitted_job_committed",
        "A job that never reached the device wrote nothing.",
        ("I3",),
        (),
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
        "old_sequence_after_a_restart",
        "Who starts over starts with what it was made of.",
        ("I10", "I4"),
        (),
        (
            Patch(
                "executor/engine_step.py",
                "        if row.first_position == 0 and (sequence is None or sequence.generated):\n",
                "        if row.first_position == 0 and sequence is None:\n",
            ),
        ),
    ),
    Mutant(
        "handed_over_and_kept",
        "Who goes to a sibling is in one line only.",
        ("I1", "I3"),
        (),
        (
            Patch(
                "core/roster.py",
                "            self.line.remove(request)\n"
                "            request.move(RequestEvent.CANCEL)  # here; its deadline entry is one of the dead\n"
                "            self._forget(request)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "full_too_early",
        "A refusal names a limit that was reached.",
        ("I12",),
        (),
        (
            Patch(
                "core/admission.py",
                "config.max_waiting_requests, line.requests + 1)",
                "config.max_waiting_requests, line.requests * 2 + 1)",
            ),
        ),
    ),
    Mutant(
        "rows_passed_over_for_ever",
        "A cheap small graph may not starve the high lanes.",
        ("I8",),
        (),
        (
            Patch(
                "core/plan.py",
                "    return policy.step - request.ready_at_step >= MAX_PASSED_OVER\n",
                "    return False\n",
            ),
        ),
    ),
    Mutant(
        "wide_reset_beside_a_sibling_that_runs",
        "A reset that takes every session along waits until all of them stand still.",
        ("I1", "I4", "I7", "I11"),
        (),
        (
            Patch(
                "core/supervisor.py",
                "            if other.state is not G.RECOVERING or other.pending:\n                still = False\n",
                "",
            ),
        ),
    ),
    Mutant(
        "text_after_its_stop",
        "A request that reached its stop ends there.",
        ("I10",),
        (),
        (
            Patch(
                "core/retirement.py",
                "        is_stop = result.end in _STOPS\n",
                "        is_stop = result.end is RowEnd.EOS\n",
            ),
        ),
    ),
)
