"""Expected ends of a command: one sentence, one exit code.

0 an orderly end; 1 refused: the model, the board, the port, the configuration or a request; 2 a wrong flag; 3 a check
that ran to its end did not hold (`soak`, `prove`); 70 an invariant of ours broke, or the engine did not answer a
shutdown; 75 the board failed in a way that a new process may cure: the supervisor should start one; 76 a drain was cut
before the board was released. 130: interrupted; 129 and 143: told to end by SIGHUP or SIGTERM, in order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from calserve.cli.interrupts import listen_to_interrupts
from calserve.stopping import stop_of

REFUSED = 1


class Refusal(Exception):
    """A command cannot do what it was asked; `str()` is the sentence."""


@contextmanager
def told_in_one_sentence() -> Iterator[None]:
    """Turn expected failures into their sentence and exit code 1; anything else stays a bug.

    From here on Ctrl-C is the command's own: what it began is put in order before it ends.
    """
    listen_to_interrupts()
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _refuse(f"No space is left on the device{_of(error)}.")
        else:
            _refuse(f"{os.strerror(error.errno) if error.errno else error}{_of(error)}.")
    except KeyboardInterrupt as interrupt:
        stopped = stop_of(interrupt)
        typer.echo(stopped.sentence, err=True)
        raise typer.Exit(stopped.exit_code) from None
    except Exception as error:
        if not isinstance(error, _expected()):
            raise
        _refuse(str(error))


def _expected() -> tuple[type[Exception], ...]:
    """What is refused with a sentence of its own. Imported when something failed: no command waits for all of them."""
    from calserve.accept.evidence import EvidenceError
    from calserve.bench.sides import BenchError
    from calserve.package.fault import PackageError
    from calserve.runtime.lock import BoardBusy
    from calserve.runtime.sim.faults import FaultPlanError
    from calserve.runtime.sim.figures import ProfileError
    from calserve.service.config import ConfigError
    from calserve.simulate.record import RecordError
    from calserve.simulate.wall.options import SoakError
    from calserve.text.template import TemplateError

    return (
        Refusal,
        BenchError,
        BoardBusy,
        ConfigError,
        EvidenceError,
        FaultPlanError,
        PackageError,
        ProfileError,
        RecordError,
        SoakError,
        TemplateError,
    )


def _of(error: OSError) -> str:
    return f" ({error.filename})" if error.filename else ""


def say(sentence: str) -> None:
    """The sentence a command ends with, on standard error."""
    typer.echo(f"calserve: {sentence}", err=True)


def _refuse(sentence: str) -> None:
    say(sentence)
    raise typer.Exit(REFUSED) from None
