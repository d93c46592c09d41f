"""How a step that needs a job's end asks for it without blocking.

Owns: the question (`AwaitJob`), the form of the answer, and the loop of a thread that may block. Must not know: what
the job is for. A step is a generator: it yields the question and is sent what `Session.wait` returned.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from calserve.runtime.contract import Code, JobStatus, Session, Ticket

Awaited = tuple[Code, JobStatus | None]
_End = TypeVar("_End")


@dataclass(frozen=True, slots=True)
class AwaitJob:
    """`session.wait(ticket, timeout_ns)` is wanted; send its answer back."""

    session: Session
    ticket: Ticket
    timeout_ns: int

    def wait(self) -> Awaited:
        """Blocks."""
        return self.session.wait(self.ticket, self.timeout_ns)


def drive(steps: Generator[AwaitJob, Awaited, _End]) -> _End:
    """Run `steps` to its end on a thread that may block; the end is what the generator returns. What a wait raises is
    raised where it was asked for."""
    try:
        wanted = next(steps)
        while True:
            try:
                answer = wanted.wait()
            except Exception as error:
                wanted = steps.throw(error)
            else:
                wanted = steps.send(answer)
    except StopIteration as end:
        result: _End = end.value
        return result
