"""The questions of seed 004, section 7.1, answered from what the proofs saw.

Owns: the questions, row by row, and which figure answers which. Must not know: how a figure was measured. What the
contract cannot show is answered "not answerable here", with the reason; nothing is inferred from a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calserve.accept.conform.record import Answer, ProofRecord

Seen = Mapping[str, ProofRecord]
Told = Callable[[Seen], str]
_UNSEEN = "not answerable here: "


@dataclass(frozen=True, slots=True)
class _Question:
    """told: the answer; one that starts with "not answerable here" was not measured."""

    row: str
    question: str
    told: Told


def answers_of(seen: Seen) -> tuple[Answer, ...]:
    answers = []
    for each in QUESTIONS:
        text = each.told(seen)
        answers.append(Answer(each.row, each.question, not text.startswith(_UNSEEN), text))
    return tuple(answers)


def _of(proof_id: str) -> Told:
    """The proof's own sentence, where it ran."""

    def told(seen: Seen) -> str:
        proof = seen[proof_id]
        if proof.verdict == "not_run":
            return _UNSEEN + proof.sentence
        return f"{'' if proof.verdict == 'passed' else proof.verdict.replace('_', ' ') + ': '}{proof.sentence}"

    return told


def _never(why: str) -> Told:
    return lambda seen: _UNSEEN + why


def _figure(proof_id: str, name: str, told: Callable[[object], str], otherwise: str) -> Told:
    """From one figure of a proof; `otherwise` why it is not there."""

    def answer(seen: Seen) -> str:
        value = seen[proof_id].figures.get(name)
        return _UNSEEN + otherwise if value is None else told(value)

    return answer


def _jobs_in_flight(seen: Seen) -> str:
    proof = seen["concurrent_jobs"]
    if proof.verdict == "passed":
        return "two, with right tokens and a gain"
    busy = seen["refused_submit"].figures.get("busy_code")
    also = f"; a second submit on the same buffers gives code {busy}" if busy is not None else ""
    return f"one is used: {proof.sentence}{also}"


def _memory(seen: Seen) -> str:
    figures = seen["unload"].figures
    parts = [f"{name.removesuffix('_bytes')} {value}" for name, value in figures.items() if name.endswith("_bytes")]
    return f"bytes by use: {', '.join(parts)}" if parts else _UNSEEN + seen["unload"].sentence


def _reset(scope: str) -> Told:
    return _figure("reset_scopes", scope, str, "the proof stopped before this scope")


def _telemetry(seen: Seen) -> str:
    found = {k: v for k, v in seen["observation"].figures.items() if k.endswith("_readable")}
    told = "; ".join(f"{name.removesuffix('_readable')}: {value or 'nothing'}" for name, value in found.items())
    return (
        f"{told}. Bytes, degrees Celsius, watts, hertz; None where unreadable" if told else _UNSEEN + "no session ran"
    )


_ONE_CHIP = "a second session on another chip could not be had"
_NO_FAULTS = "the contract has no call that makes a job fail; the vendor's error injection is needed"

QUESTIONS = (
    _Question(
        "address_space",
        "May two sessions use the same virtual addresses?",
        _never("the contract shows no addresses of the device"),
    ),
    _Question("address_space", "Do the same lanes and units of two sessions stay apart?", _of("siblings")),
    _Question(
        "address_space",
        "How do IOMMU and DMA tell two sessions apart?",
        _never("the contract has no call that shows either"),
    ),
    _Question("address_space", "How long does a host mapping live?", _of("buffers")),
    _Question(
        "configure", "Does a load on one chip change the other's model, commands or sync units?", _of("siblings")
    ),
    _Question("configure", "What is refused, and what does a refusal leave?", _of("configure")),
    _Question("configure", "May a second package be configured on the same chips?", _of("multi_package")),
    _Question(
        "submit",
        "May two threads submit at once?",
        _never("one thread runs the proofs, as one thread submits in a server"),
    ),
    _Question("submit", "How many jobs may be in flight?", _jobs_in_flight),
    _Question("submit", "In which order do jobs complete, and whose is a completion?", _of("jobs")),
    _Question(
        "queue", "Does a short job wait for a long one on the other chip?", _figure("siblings", "order", str, _ONE_CHIP)
    ),
    _Question("queue", "Do the counters close?", _of("jobs")),
    _Question("kv", "Is KV kept apart by session, generation and sequence?", _of("alternating")),
    _Question("kv", "Is KV unchanged after a failed submit?", _of("refused_submit")),
    _Question("kv", "Is KV partly written when a job fails on the device?", _never(_NO_FAULTS)),
    _Question("kv", "Do inactive lanes write KV?", _of("inactive_lanes")),
    _Question(
        "memory",
        "Is the quota held?",
        _figure(
            "configure",
            "quota_of_one_byte",
            lambda code: f"a quota of one byte is refused with code {code}",
            "the proof stopped before it",
        ),
    ),
    _Question(
        "memory",
        "Does a failed allocation touch another session?",
        _figure(
            "siblings",
            "second_configure_code",
            lambda code: f"a configure refused with code {code} changed nothing of it",
            _ONE_CHIP,
        ),
    ),
    _Question("memory", "What does a session use?", _memory),
    _Question("reset", "What does a CCU reset destroy?", _reset("ccu")),
    _Question("reset", "What does a session reset destroy?", _reset("session")),
    _Question("reset", "What does a chip reset destroy?", _reset("chip")),
    _Question("reset", "What does a reset of the configuration destroy?", _reset("configuration")),
    _Question("reset", "What does a reset of the board destroy?", _reset("board")),
    _Question("unload", "Does it release only its session, and is it refused while a job is out?", _of("unload")),
    _Question(
        "errors",
        "What does a timeout of wait leave?",
        _figure(
            "jobs",
            "timeout_code",
            lambda code: f"wait without time gives code {code}; the job stays the waiter's and ends as any other",
            "every job was over when it was waited for",
        ),
    ),
    _Question("errors", "What does an invalid package leave?", _of("configure")),
    _Question("errors", "How far does a crash of a job reach?", _never(_NO_FAULTS)),
    _Question("observation", "What can be read of each chip, and in which units?", _telemetry),
    _Question(
        "observation",
        "What does the trace show, and on which clock?",
        _figure("observation", "phases", lambda phases: f"{phases}, in ns of the board's own clock", "no session ran"),
    ),
)
