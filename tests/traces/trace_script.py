"""The printed form of a scenario: one line per event, then what the engine ordered, then where it stands.

An event line is `MILLISECONDS VERB ARGUMENTS`; everything indented below it is the engine's answer.
"""

from __future__ import annotations

from dataclasses import replace

from core_rig import MS, Rig, fault, lane_facts, paged_facts

from calserve.core.commands import Command, Emit, Finish, Reset, SubmitJob
from calserve.core.config import SchedulerConfig
from calserve.core.events import BoardAnomaly, Cancel, CancelCause, JobOverdue, Load, Shutdown, Unload
from calserve.core.job import JobSpec, LogitsWanted
from calserve.core.outcomes import FaultClass, RowEnd

BOARDS = {"paged": paged_facts, "lanes": lane_facts}


def options(words: list[str]) -> dict[str, object]:
    """`key=1` a number, `key=1,4` a tuple, `key=10ms` nanoseconds, anything else text."""
    found: dict[str, object] = {}
    for key, _, text in (word.partition("=") for word in words):
        if text.endswith("ms") and text[:-2].isdigit():
            found[key] = int(text[:-2]) * MS
        elif "," in text:
            found[key] = tuple(int(part) if part.isdigit() else part for part in text.split(","))
        else:
            found[key] = int(text) if text.isdigit() else text
    return found


def play(rig: Rig, verb: str, words: list[str]) -> list[Command]:
    """One event line. Names without `=` come first, options after them."""
    names = [word for word in words if "=" not in word]
    given = options([word for word in words if "=" in word])
    match verb, names:
        case "submit", [name]:
            return rig.submit(name, **given)  # type: ignore[arg-type]
        case "cancel", [name]:
            return rig.send(Cancel(name, CancelCause.CLIENT_GONE))
        case "done", _:
            ends = {name: RowEnd(str(end)) for name, end in given.items()}
            return rig.done(int(names[0]) if names else None, ends)
        case "failed", [kind]:
            return rig.failed(FaultClass(kind))
        case "refused", [kind]:
            return rig.unprepared(FaultClass(kind), stage=str(given.get("stage", "submit")))
        case "overdue", [job]:
            return rig.send(JobOverdue(int(job), rig.jobs[int(job)].generation))
        case "tick", []:
            return rig.tick(rig.now)
        case _:
            return _play_lifecycle(rig, verb, names, given)


def _play_lifecycle(rig: Rig, verb: str, names: list[str], given: dict[str, object]) -> list[Command]:
    match verb, names:
        case "unload", [session]:
            return rig.send(Unload(session, int(str(given["by"]))))
        case "shutdown", []:
            return rig.send(Shutdown(int(str(given["by"]))))
        case "answer", []:
            return answer(rig)
        case "bad", [kind]:
            return bad_answer(rig, FaultClass(kind))
        case "load", [package]:
            return rig.send(Load("s", "m", package))
        case "anomaly", [detail]:
            return rig.send(BoardAnomaly("s", rig.view.generation, detail))
        case _:
            raise ValueError(f"no such event: {verb} {names}")


def answer(rig: Rig) -> list[Command]:
    """The lifecycle order that is out succeeds; a reset ends whatever was on the device."""
    order = rig.orders[-1]
    if isinstance(order, Reset):
        rig.jobs.clear()
    return rig.send(rig.answer(order))


def bad_answer(rig: Rig, kind: FaultClass) -> list[Command]:
    """The lifecycle order that is out fails."""
    answer = rig.answer(rig.orders[-1])
    return rig.send(replace(answer, failure=fault(kind, type(answer).__name__.lower())))  # type: ignore[call-arg,type-var]


def board(words: list[str]) -> Rig:
    """The first line: `board KIND` with facts (`lanes=4`) and settings (`set.KEY=VALUE`)."""
    given = options(words[1:])
    settings = {key[4:]: value for key, value in given.items() if key.startswith("set.")}
    facts = {key: value for key, value in given.items() if not key.startswith("set.")}
    if "proven" in facts:
        facts["proven"] = frozenset(facts["proven"])  # type: ignore[call-overload]
    made = BOARDS[words[0]](**facts)  # type: ignore[arg-type]
    return Rig(config=SchedulerConfig(**settings), facts=made)  # type: ignore[arg-type]


def show(command: Command) -> list[str]:
    match command:
        case SubmitJob(spec):
            return [_show_job(spec), *(_show_row(spec, index) for index in range(len(spec.rows)))]
        case Emit(request, job, row):
            return [f"emit {request} (job {job} row {row})"]
        case Finish(request, reason, usage, refusal):
            why = f" {refusal.kind.value} limit={refusal.limit} given={refusal.given}" if refusal else ""
            return [f"finish {request} {reason.value}{why} ({usage.prompt_tokens} in, {usage.completion_tokens} out)"]
        case _:
            return [str(command)]


def _show_job(spec: JobSpec) -> str:
    bank = "" if spec.bank.value < 0 else f" {spec.bank.name.lower()}"
    return f"submit job {spec.job} gen {spec.generation}: {spec.task.value} on {spec.graph}{bank}"


def _show_row(spec: JobSpec, index: int) -> str:
    row = spec.rows[index]
    end = row.first_position + row.token_count
    last = "" if row.logits is LogitsWanted.NONE else " -> token"
    return f"    {row.request} lane {row.lane} units {list(row.kv_units)} [{row.first_position}, {end}){last}"


def stand(rig: Rig) -> str:
    view = rig.view
    lanes = " ".join(f"{state}={count}" for state, count in view.lanes_by_state.items() if count)
    due = rig.engine.next_deadline_ns()
    waits = f", waiting {view.waiting_requests} ({view.waiting_reason})" if view.waiting_requests else ""
    timer = "" if due is None else f", timer {due / MS:g}"
    return f"= {view.state.value}, lanes {lanes or 'none'}, units {view.kv_units_held}{waits}{timer}"
