"""Proofs of jobs and memory: tickets, time-outs, counters, trace, buffers, unload, cancel, and two jobs in flight.

Owns: what every board must answer. Must not know: boards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calserve.accept.conform.hand import Hand, Line, Turn
from calserve.accept.conform.proof import Outcome, Rig, Verdict, failed, judged, not_supported
from calserve.accept.driver import STEP_TIMEOUT_NS
from calserve.accept.evidence import Figure
from calserve.accept.pingpong import run_pingpong
from calserve.core.job import Bank
from calserve.runtime.contract import StatusKind, Ticket
from calserve.runtime.errors import CalCode

ADDRESS_JOBS = 4


def prove_jobs(rig: Rig) -> Outcome:
    """Names of completions, counters that close, a trace of every job, no second delivery."""
    wrong: list[str] = []
    before = rig.board.counters().finished
    with rig.session() as hand:
        ids = rig.prompt(min(12, rig.package.context))
        numbers = set()
        for _ in range(2):
            flying = hand.fly(*hand.describe([Turn(Line(0), ids)]))
            code, status = hand.session.wait(flying.ticket, STEP_TIMEOUT_NS)
            if code or status is None or status.status is not StatusKind.DONE:
                return failed(f"wait gave code {code} and status {status.status.value if status else 'none'}")
            named = (status.ticket.job, status.ticket.generation, status.generation)
            if status.ticket != flying.ticket or named != (flying.spec.job, rig.generation, rig.generation):
                wrong.append(f"the completion of job {flying.spec.job} names job {named[0]}, generation {named[2]}")
            if not hand.session.wait(flying.ticket, 0)[0]:
                wrong.append("a completion is delivered twice")
            numbers.add(flying.ticket.number)
            hand.give_back(flying.buffers)
        flying = hand.fly(*hand.describe([Turn(Line(0), rig.prompt(rig.package.context))]))
        timeout = hand.session.wait(flying.ticket, 0)[0]
        if timeout not in (0, CalCode.TIMEOUT):
            wrong.append(f"wait without time gives code {timeout}")
        elif timeout:
            hand.land(flying)
        else:
            hand.give_back(flying.buffers)
        numbers.add(flying.ticket.number)
        if len(numbers) < 3:
            wrong.append("two jobs have one ticket number")
        if not hand.session.wait(Ticket(10**9, 1, 1), 0)[0]:
            wrong.append("wait takes a ticket that was never given")
        drained = hand.session.drain(STEP_TIMEOUT_NS)
        counters, traced = rig.board.counters(), {span.job for span in rig.board.trace(0)}
    if drained or (counters.pending, counters.left) != (0, 0):
        wrong.append(f"after a drain (code {drained}) {counters.pending} jobs are pending and {counters.left} left")
    if counters.finished - before != len(numbers):
        wrong.append(f"{counters.finished - before} jobs were counted as finished, {len(numbers)} were run")
    figures: dict[str, Figure] = {"finished": counters.finished - before, "in_trace": len(traced & {1, 2, 3})}
    if timeout:
        figures["timeout_code"] = timeout
    if wrong:
        return failed("; ".join(wrong), **figures)
    return Outcome(Verdict.PASSED, "completions name their job, once; the counters close after a drain", figures)


def prove_buffers(rig: Rig) -> Outcome:
    """Addresses that stay, operations beyond the memory refused, and nothing of a request left after a reset."""
    wrong: list[str] = []
    with rig.session() as hand:
        seen: dict[str, set[int]] = {}
        for length in (3, 1, 17, 5)[:ADDRESS_JOBS]:
            ids = rig.prompt(min(length, rig.package.context))
            flying = hand.fly(*hand.describe([Turn(Line(0), ids)]))
            for name in (*flying.graph.inputs, *flying.graph.outputs):
                address = flying.buffers.host(name).__array_interface__["data"][0]
                seen.setdefault(f"{flying.graph.name}.{name}", set()).add(address)
            hand.land(flying)
            left = [name for name in flying.graph.inputs if flying.buffers.host(name).any()]
            wrong += [f"{name} holds data of a job after reset" for name in left]
            if not _is_unreadable(flying.buffers.host("logits")):
                wrong.append("an output that was given back reads as a result")
        wrong += [f"{name} moved" for name, addresses in seen.items() if len(addresses) > 1]
        wrong += _beyond(hand)
    if wrong:
        return failed("; ".join(wrong))
    sentence = f"{len(seen)} tensors kept their address over {ADDRESS_JOBS} jobs, and are scrubbed"
    return Outcome(Verdict.PASSED, sentence, {"tensors": len(seen), "jobs": ADDRESS_JOBS})


def _is_unreadable(logits: np.ndarray[Any, Any]) -> bool:
    """bfloat16 comes as its bit patterns, the upper half of a float32."""
    if logits.dtype == np.uint16:
        logits = (logits.astype(np.uint32) << 16).view(np.float32)
    return bool(np.isnan(logits).any())


def _beyond(hand: Hand) -> list[str]:
    """Operations no buffer may take, that were taken."""
    wrong = []
    for name, graph in hand.session.graphs.items():
        buffers = hand.buffers(name)
        for what, code in (
            ("map", buffers.map("nothing")),
            ("slice", buffers.slice("nothing", (1,))),
            ("CSR", buffers.set_csr("nothing", 1)),
        ):
            if not code:
                wrong.append(f"a {what} of an unknown name is taken")
        for tensor in (*graph.inputs.values(), *graph.outputs.values()):
            if tensor.shape and not buffers.slice(tensor.name, (tensor.shape[0] + 1, *tensor.shape[1:])):
                wrong.append(f"a slice of {tensor.name} beyond its memory is taken")
        hand.give_back(buffers)
    if not hand.session.allocate("nothing", Bank.AUTO)[0]:
        wrong.append("buffers of an unknown graph are given")
    return wrong


def prove_unload(rig: Rig) -> Outcome:
    """Closing is refused while a job is out, releases everything after, and the next configuration is as the first."""
    agree = rig.agreement()
    chip = rig.options.jobs.chips[0]
    ids = rig.prompt(min(12, rig.package.context))
    used = [rig.board.telemetry(chip).memory_used]
    with rig.session() as hand:
        expected = hand.prefill(Line(0), ids)
        flying = hand.fly(*hand.describe([Turn(Line(0), ids)]))
        busy = hand.session.close()
        used.append(rig.board.telemetry(chip).memory_used)
        if not busy:
            return failed("a session closes while a job of it is in flight")
        hand.land(flying)
        memory = dict(hand.session.memory())
        code = hand.session.close()
        if code:
            return failed(f"close of an idle session gave code {code}")
        dead = hand.session.submit(flying.spec, flying.buffers)[0]
        if not dead:
            return failed("a closed session takes a job")
    used.append(rig.board.telemetry(chip).memory_used)
    with rig.session() as hand:
        agree.check("the first prompt of the next configuration", expected, hand.prefill(Line(0), ids))
    figures: dict[str, Figure] = {"busy_code": busy, "closed_code": dead}
    figures |= {f"{name}_bytes": size for name, size in memory.items()}
    for name, value in zip(("before", "loaded", "after"), used, strict=True):
        figures[f"memory_{name}"] = "unreadable" if value is None else value
    return judged(agree, f"close with a job in flight gave code {busy}, and a closed session is gone", figures)


def prove_observation(rig: Rig) -> Outcome:
    """What the board can be asked about itself. A value that cannot be read is None, never 0."""
    figures: dict[str, Figure] = {}
    with rig.session() as hand:
        since = max((span.end_ns for span in rig.board.trace(0)), default=0)
        hand.prefill(Line(0), rig.prompt(min(16, rig.package.context)))
        spans = [span for span in rig.board.trace(since) if span.job == hand.jobs and span.end_ns > since]
        for chip in rig.facts.chips:
            seen = rig.board.telemetry(chip.chip)
            names = ("memory_used", "memory_total", "temperature_c", "power_w", "frequency_hz", "throttled", "resets")
            readable = [name for name in names if getattr(seen, name) is not None]
            figures[f"chip{chip.chip}_readable"] = ", ".join(readable)
            zero = [n for n in ("memory_total", "temperature_c", "power_w", "frequency_hz") if getattr(seen, n) == 0]
            if zero:
                return failed(f"chip {chip.chip} reads 0 for {zero[0]}, which stands for unreadable", **figures)
    figures["phases"] = ", ".join(sorted({span.phase for span in spans}))
    figures["trace_chips"] = ", ".join(sorted({str(span.chip) for span in spans}))
    backward = [span for span in spans if span.end_ns < span.begin_ns]
    if not spans or backward:
        return failed(
            "the trace has no span of a job that ran" if not spans else "a span ends before it begins", **figures
        )
    return Outcome(Verdict.PASSED, f"the trace shows {figures['phases']}", figures)


def prove_cancel(rig: Rig) -> Outcome:
    """A long job cancelled: refused, or it ends, harms nobody and gives its buffers back."""
    agree = rig.agreement()
    with rig.session() as hand:
        other = Line(1 % hand.session.lanes)
        is_two = other.lane != 0
        if is_two:
            hand.prefill(other, rig.prompt(min(12, rig.package.context - 2)))
            before = hand.again([other], [3])[0]
        flying = hand.fly(*hand.describe([Turn(Line(0), rig.prompt(rig.package.context // 2))]))
        code = hand.session.cancel(flying.ticket)
        if code:
            hand.land(flying)
            return not_supported(f"cancel gave code {code}, and the job ran to its end", code=code)
        end, status = hand.session.wait(flying.ticket, STEP_TIMEOUT_NS)
        if status is None or status.status not in (StatusKind.DONE, StatusKind.DONE_CCU_EXCEPTION):
            return failed(f"a cancelled job does not end: wait gave code {end}")
        hand.give_back(flying.buffers)
        if is_two:
            agree.check("the other lane after the cancel", before, hand.again([other], [3])[0])
        line = Line(0)
        ids = rig.prompt(min(9, rig.package.context - 1), 4)
        expected = hand.prefill(line, ids)
        hand.release(line)
        agree.check("the cancelled lane used again", expected, hand.prefill(line, ids))
    return judged(agree, f"a cancelled job ended with code {end}", {"end_code": end})


def prove_two_jobs(rig: Rig) -> Outcome:
    """`calserve prove concurrent-jobs`, and its evidence kept."""
    report = run_pingpong(rig.board, rig.package, rig.options.jobs, rig.progress)
    evidence = rig.evidence = report.evidence
    figures: dict[str, Figure] = {check.name: check.passed for check in evidence.checks}
    if not evidence.checks and report.stopped.startswith("configure"):
        return not_supported(report.stopped, **figures)
    if evidence.state == "C0":
        return Outcome(Verdict.PASSED, "right tokens, overlap and gain with two jobs in flight", figures)
    missed = ", ".join(name for name in evidence.missing if name != "soak_24h")
    return failed(f"{report.stopped + '; ' if report.stopped else ''}without {missed}", **figures)
