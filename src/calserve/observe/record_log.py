"""The record's log: failures, resets and the lives of generations, one line each.

Owns which events and commands an operator reads about, at which level, and the jobs that are out, so that a failure
and a reset name them. Must not know prompts, text, or how a line is written. Requests are not logged: they are
counted (see `requests`). Life: made before the executor, called on the engine thread for every event; what it keeps
is bounded by the jobs that are out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import structlog

from calserve.core.commands import Command, Exit, Reset, SubmitJob
from calserve.core.events import (
    BoardAnomaly,
    Configured,
    Event,
    JobDone,
    JobFailed,
    JobOverdue,
    Load,
    PrepareFailed,
    Released,
    ResetDone,
    Shutdown,
    Unload,
    Validated,
    Warmed,
)
from calserve.core.job import JobSpec
from calserve.core.outcomes import KV_STAGE, BoardNote, Failure, RowEnd
from calserve.core.resets import is_wide

LOGGER = "calserve.record"
# A job's requests are named in so many characters, and each in so many: a client may have chosen the name, and a value
# of more than 500 would be cut by the log itself, in the middle of a name.
NAMES_CHARACTERS_MAX, NAME_CHARACTERS_MAX = 440, 64
# The raw codes of what has no failure of its own: `wait` timed out, and a job that succeeded with unusable rows.
_TIMEOUT, _SUCCESS = 13, 0
_NS_PER_MS = 1_000_000
# Jobs remembered after their end: many times as many as may be out at once.
GONE_MAX = 64


@dataclass(frozen=True, slots=True)
class _Out:
    """A job that was ordered and has not come back."""

    spec: JobSpec
    ordered_ns: int


class RecordLog:
    """A `Recorder` (see `executor.messages`).

    Invariants: a job is kept from its `SubmitJob` to its end, or to the end of its session's generation; the last ones
    that never came back, or came back bad, are remembered beyond it, because an answer to one may still come. A job
    that succeeded costs a look at its rows and commands, and no line.
    """

    def __init__(self) -> None:
        self._log = structlog.stdlib.get_logger(LOGGER)
        self._jobs: dict[int, _Out] = {}
        self._gone: dict[int, _Out] = {}
        self._resets: dict[tuple[str, int], dict[str, object]] = {}  # ordered and not answered: cause and jobs out

    def __call__(self, now_ns: int, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, JobDone):
            self._end_job(event)
        else:
            tell = _TELL.get(type(event))
            if tell is not None:
                tell(self, event, now_ns)
        for command in commands:
            kind = type(command)
            if kind is SubmitJob:
                self._jobs[command.spec.job] = _Out(command.spec, now_ns)  # type: ignore[union-attr]
            elif kind is Reset or kind is Exit:
                self._order(command, now_ns)

    # Jobs

    def _end_job(self, event: JobDone) -> None:
        out = self._jobs.pop(event.job, None) or self._gone.get(event.job)
        wrong = [index for index, row in enumerate(event.rows) if row.end is RowEnd.ERROR]
        if wrong:
            names = _job_names(event.job, event.generation, out)
            self._log.error("a job's output cannot be used", **names, stage="output", code=_SUCCESS, bad_rows=wrong)

    def _prepare_failed(self, event: PrepareFailed, now_ns: int) -> None:
        names = _job_names(event.job, event.generation, self._jobs.pop(event.job, None))
        # A full board is no failure: the job is ordered again when KV is released, perhaps many times a second.
        level = logging.DEBUG if event.failure.stage == KV_STAGE else logging.WARNING
        self._log.log(level, "a job was not taken", **names, **_cause(event.failure))

    def _job_failed(self, event: JobFailed, now_ns: int) -> None:
        out = self._jobs.pop(event.job, None) or self._gone.get(event.job)
        if out is not None:
            self._remember(event.job, out)
        names = _job_names(event.job, event.generation, out)
        self._log.error("a job failed", **names, age_ms=_age_ms(out, now_ns), **_cause(event.failure))

    def _job_overdue(self, event: JobOverdue, now_ns: int) -> None:
        out = self._jobs.get(event.job) or self._gone.get(event.job)
        names = _job_names(event.job, event.generation, out)
        self._log.warning("a job is overdue", **names, age_ms=_age_ms(out, now_ns), stage="wait", code=_TIMEOUT)

    def _remember(self, job: int, out: _Out) -> None:
        self._gone[job] = out
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]

    # Sessions

    def _load(self, event: Load, now_ns: int) -> None:
        self._log.info("a load was asked for", session=event.session, model=event.model, package=event.package)

    def _unload(self, event: Unload, now_ns: int) -> None:
        self._log.info("an unload was asked for", session=event.session, within_ms=_until_ms(event.deadline_ns, now_ns))

    def _shutdown(self, event: Shutdown, now_ns: int) -> None:
        self._log.info("a shutdown was asked for", within_ms=_until_ms(event.deadline_ns, now_ns))

    def _step(self, event: Validated | Configured | Warmed | Released | ResetDone, now_ns: int) -> None:
        done, failed = _STEPS[type(event)]
        names: dict[str, object] = {"session": event.session, "generation": event.generation}
        if isinstance(event, ResetDone):
            names |= self._resets.pop((event.session, event.generation), {})
            names |= {"before": _board(event.before), "after": _board(event.after)}
        if event.failure is not None:
            self._log.error(failed, **names, **_cause(event.failure))
            return
        self._log.info(done, **names)
        if isinstance(event, Released | ResetDone):
            # Nothing of this generation is on the device any more; a job of it that never came back is over.
            for job, out in tuple(self._jobs.items()):
                if out.spec.session == event.session and out.spec.generation <= event.generation:
                    self._remember(job, self._jobs.pop(job))

    def _anomaly(self, event: BoardAnomaly, now_ns: int) -> None:
        names = {"session": event.session, "generation": event.generation, "stage": "counters", "detail": event.detail}
        if event.before is None:
            self._log.warning("a board's account does not add up", **names)
        else:
            stands = {"before": _board(event.before), "after": _board(event.after)}
            self._log.error("a board was reset before its first use", **names, **stands)

    # Orders

    def _order(self, command: Command, now_ns: int) -> None:
        if isinstance(command, Reset):
            is_for_all = is_wide(command.scope)
            out = sorted(job for job, kept in self._jobs.items() if is_for_all or kept.spec.session == command.session)
            names = {"session": command.session, "generation": command.generation, "scope": command.scope.value}
            self._log.error("a reset was ordered", **names, jobs_out=out, **_cause(command.cause))
            why = {f"cause_{name}": value for name, value in _cause(command.cause).items()}
            self._resets[command.session, command.generation] = {"jobs_out": out, **why}
        elif isinstance(command, Exit):
            level = logging.INFO if command.code == 0 else logging.ERROR
            self._log.log(
                level, "the process ends", exit_code=command.code, reason=command.reason, jobs_out=sorted(self._jobs)
            )


_STEPS: Mapping[type[Event], tuple[str, str]] = MappingProxyType(
    {
        Validated: ("a package is valid", "a package is not valid"),
        Configured: ("a session is configured", "a session could not be configured"),
        Warmed: ("a session is warm", "a session could not be warmed"),
        Released: ("a session is released", "a session could not be released"),
        ResetDone: ("a reset is done", "a reset failed"),
    }
)
_TELL: Mapping[type[Event], Callable[[RecordLog, Any, int], None]] = MappingProxyType(
    {
        PrepareFailed: RecordLog._prepare_failed,
        JobFailed: RecordLog._job_failed,
        JobOverdue: RecordLog._job_overdue,
        BoardAnomaly: RecordLog._anomaly,
        Load: RecordLog._load,
        Unload: RecordLog._unload,
        Shutdown: RecordLog._shutdown,
        **dict.fromkeys(_STEPS, RecordLog._step),
    }
)


def _job_names(job: int, generation: int, out: _Out | None) -> dict[str, object]:
    """An event about a job that nobody remembers names no session."""
    if out is None:
        return {"job": job, "session": None, "generation": generation}
    spec = out.spec
    return {
        "job": job,
        "session": spec.session,
        "generation": generation,
        "graph": spec.graph,
        "task": spec.task.value,
        "rows": len(spec.rows),
        "sequences": _sequences(spec),
    }


def _sequences(spec: JobSpec) -> str:
    """The requests of a job, in row order; control characters escaped."""
    names: list[str] = []
    room = NAMES_CHARACTERS_MAX
    for row in spec.rows:
        name = ascii(row.request[:NAME_CHARACTERS_MAX])[1:-1]
        room -= len(name) + 2
        if room < 0:
            return f"{', '.join(names)} and {len(spec.rows) - len(names)} more"
        names.append(name)
    return ", ".join(names)


def _board(note: BoardNote | None) -> str | None:
    """How the board stood, as one value of a line."""
    if note is None:
        return None
    health = "healthy" if note.is_healthy else "not healthy"
    versions = ", ".join(f"{name} {version}" for name, version in note.versions)
    return f"{health}{': ' + note.health if note.health else ''}; {versions}"


def _cause(failure: Failure) -> dict[str, object]:
    return {"stage": failure.stage, "code": failure.code, "fault": failure.fault.value, "detail": failure.detail}


def _age_ms(out: _Out | None, now_ns: int) -> int | None:
    return None if out is None else (now_ns - out.ordered_ns) // _NS_PER_MS


def _until_ms(deadline_ns: int, now_ns: int) -> int:
    return max(deadline_ns - now_ns, 0) // _NS_PER_MS
