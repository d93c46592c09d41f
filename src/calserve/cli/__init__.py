"""The command line, and the composition root: the only place that picks a board, a clock and a port.

Owns flags, exit codes and what a person reads. Must not decide anything a ring could: each command collects what
it was asked, puts the parts together, and prints. An expected refusal is one sentence on standard error and a
non-zero exit; a traceback is a bug of ours. A command in a file of its own is registered where `app` imports it.

The commands are imported when they are called: this package is the first thing a console script imports, and a Ctrl-C
may come before anything of it is there.
"""

from calserve.cli.interrupts import leave_on_interrupt

__all__ = ["main"]


def main() -> None:
    """Entry point of the `calserve` command."""
    leave_on_interrupt()
    from calserve.cli.app import app
    from calserve.stopping import end_with_parent

    end_with_parent()
    app()
