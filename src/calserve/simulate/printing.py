"""The printed form of a run's record, the same in every process: what the hash of a run is made of.

Owns: how events and commands become bytes. Must not know: what they mean. Sets are printed in order, because the
order of a set of texts follows PYTHONHASHSEED; everything else prints as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

from calserve.core.commands import Command, Emit, SubmitJob
from calserve.core.events import Configured, Event, JobDone, JobSubmitted, Tick


def printed(value: object) -> str:
    """`repr`, but for sets, wherever they stand."""
    if isinstance(value, frozenset | set):
        return "{" + ", ".join(sorted(map(printed, value))) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(printed, value)) + ")"
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{f.name}={printed(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({inside})"
    return repr(value)


class RecordHash:
    """A recorder that hashes everything it is told. `events` counts; the last lines are kept for people to read."""

    def __init__(self, kept: int = 200) -> None:
        self._hash = hashlib.sha256()
        self._kept = kept
        self._last: list[str] = []
        self.events = 0
        self.jobs = 0
        self.wide_jobs = 0  # with four rows or more

    def __call__(self, now_ns: int, event: Event, commands: Sequence[Command]) -> None:
        self.events += 1
        line = f"{now_ns} {_event(event)} -> {' '.join(map(self._command, commands))}\n"
        self._hash.update(line.encode())
        self._last.append(line)
        if len(self._last) > 2 * self._kept:
            del self._last[: self._kept]

    def note(self, line: str) -> None:
        """Something that is no event: a process started, a fault healed."""
        self._hash.update(f"{line}\n".encode())
        self._last.append(f"{line}\n")

    def _command(self, command: Command) -> str:
        if isinstance(command, SubmitJob):
            self.jobs += 1
            self.wide_jobs += len(command.spec.rows) >= 4
            spec = command.spec
            rows = ",".join(f"{r.request}@{r.lane}:{r.first_position}+{r.token_count}" for r in spec.rows)
            return f"job {spec.job}/{spec.generation} {spec.graph} {spec.bank.name} {spec.execution_deadline_ns} {rows}"
        if isinstance(command, Emit):
            return f"emit {command.request} {command.job}.{command.row}"
        return repr(command)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    @property
    def last_lines(self) -> list[str]:
        return self._last[-self._kept :]


def _event(event: Event) -> str:
    if isinstance(event, JobDone):
        rows = ",".join(f"{row.end.value}{row.text_tokens}" for row in event.rows)
        return f"done {event.job}/{event.generation} {event.device_ns} {rows}"
    if isinstance(event, JobSubmitted):
        return f"submitted {event.job} {event.idle_ns}"
    if isinstance(event, Tick):
        return "tick"
    return printed(event) if isinstance(event, Configured) else repr(event)
