"""Mutants of the executor, the encoder, the sampler and who gathers answers: right decisions carried out wrongly.

Caught by the oracle alone, as those of `core` are (see `mutants_core`).
"""

from __future__ import annotations

from mutation import Mutant, Patch

EXECUTOR_MUTANTS = (
    Mutant(
        "no_check_of_the_generation",
        "A completion of a generation that is gone says nothing of the job that is waited for.",
        ("I4", "I10"),
        "strays",
        (
            Patch(
                "executor/completion.py",
                "    if status is not None and is_stray(status, job.ticket, spec.generation):\n",
                "    if False:\n",
            ),
            Patch(
                "executor/completion.py",
                "status.ticket == ticket and status.generation == generation",
                "status.generation < generation or status.ticket == ticket",
            ),
        ),
    ),
    Mutant(
        "code_trusted_without_the_status",
        "A wait that succeeds may tell of a job that did not: code and status are judged together.",
        ("I4", "I10"),
        "exceptions",
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
        ("I4", "I6", "I10"),
        "twice",
        (
            Patch(
                "executor/completion.py",
                "    return status.ticket == ticket and status.generation == generation\n",
                "    return True\n",
            ),
        ),
    ),
    Mutant(
        "logits_not_looked_at",
        "A NaN wins every argmax: logits that are not finite name no token.",
        ("I4", "I10"),
        "not_finite",
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
        ("I4", "I10"),
        "short",
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
            Patch(
                "executor/logits.py",
                "        target[...] = source\n",
                "        target[: len(source)] = source\n",
            ),
            Patch(
                "executor/logits.py",
                "    result = np.empty((len(rows)",
                "    result = np.zeros((len(rows)",
            ),
        ),
    ),
    Mutant(
        "buffers_given_out_while_submitted",
        "Memory the device is to read or write belongs to one job until that has retired.",
        ("I4", "I10"),
        "pairs",
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
        "contradicted_submit_taken_for_a_refusal",
        "A ticket with a code, or success without a ticket: the device may run the job.",
        ("I3", "I4", "I6", "I10"),
        "contradictions",
        (
            Patch(
                "executor/engine_step.py",
                "        if fault is not None or (code and ticket is None):\n",
                "        if fault is not None or code or ticket is None:\n",
            ),
            Patch(
                "executor/engine_step.py",
                'fault or failure("submit", code))\n',
                'fault or failure("submit", CalCode.DEVICE_BUSY))\n',
            ),
        ),
    ),
    Mutant(
        "slices_left_on_buffers",
        "Slices are undone before buffers are reset, or no buffers come back.",
        ("I7",),
        "specified",
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
        ("I4", "I10"),
        "calm",
        (
            Patch(
                "executor/completion.py",
                "    rows = [at for at in index if at is not None]\n",
                "    rows = [at for at in index if at is not None][::-1]\n",
            ),
        ),
    ),
    Mutant(
        "tokens_one_position_behind",
        "A decode carries the newest token.",
        ("I4",),
        "calm",
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
        "calm",
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
        ("I4", "I10"),
        "calm",
        (
            Patch(
                "executor/completion.py",
                "[len(s.generated) for s in sequences]",
                "[len(s.generated) + 1 for s in sequences]",
            ),
        ),
    ),
    Mutant(
        "lanes_not_released_on_the_device",
        "The device's view of KV follows ours: a lane that is free here is free there.",
        ("I7", "I8", "I11"),
        "calm",
        (
            Patch(
                "executor/engine_step.py",
                "        if port.release_lane(command.lane):\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "answer_starts_over_and_nobody_says_so",
        "Who gathers a whole answer is told when it starts over.",
        ("I10",),
        "exceptions_alone",
        (
            Patch(
                "executor/telling.py",
                "        return replace(delivery, is_anew=True)\n",
                "        return delivery\n",
            ),
        ),
    ),
    Mutant(
        "gathered_answer_keeps_its_first_try",
        "An answer that starts over is gathered anew: what came before is dropped.",
        ("I10",),
        "exceptions_alone",
        (
            Patch(
                "service/answer.py",
                "        if item.is_anew:\n            self.drop()\n",
                "",
            ),
        ),
    ),
    Mutant(
        "leftovers_of_an_earlier_process_ignored",
        "What an earlier process submitted still writes lanes of the new one.",
        ("I4",),
        "killed",
        (
            Patch(
                "executor/opening.py",
                "    if not left:\n",
                "    if True:\n",
            ),
        ),
    ),
)
