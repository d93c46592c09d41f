"""The command line, and the composition root: the only place that picks a board, a clock and a port.

Owns flags, exit codes and what a person reads. Must not decide anything a ring could: each command collects what
it was asked, puts the parts together, and prints. An expected refusal is one sentence on standard error and a
non-zero exit; a traceback is a bug of ours. A command in a file of its own is registered by being imported here.
"""

from calserve.cli import sign  # noqa: F401  (registers its commands)
from calserve.cli.app import main

__all__ = ["main"]
