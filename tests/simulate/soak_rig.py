"""Short runs of the soak for tests: plans that take a fraction of a second, and the command line in one call."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner, Result

from calserve.cli.app import app
from calserve.progress import SilentProgress
from calserve.simulate.plan import SECOND, RunPlan, draw_plan

SOURCE = Path(__file__).parents[2] / "src"
QUIET = SilentProgress()


def short_plan(seed: int, eras: int = 1) -> RunPlan:
    """Eras of a virtual minute; each after the first on the device of the one before it."""
    drawn = draw_plan(seed, 60 * SECOND).eras[0]
    return RunPlan(seed, tuple(replace(drawn, number=i, keeps_device=i > 0) for i in range(eras)))


@contextmanager
def own_log_level() -> Iterator[None]:
    """The command quiets the server's log for the life of its process; here others need it."""
    log = logging.getLogger("calserve")
    level = log.level
    try:
        yield
    finally:
        log.setLevel(level)


def calserve(*words: str | Path) -> Result:
    """`calserve WORDS...` in this process."""
    with own_log_level():
        return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def elsewhere(program: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python program in a process of its own, over the same source."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env={"PYTHONPATH": str(SOURCE), "PATH": "", **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
