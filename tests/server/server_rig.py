"""A server process, and how one is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from calserve.runtime.lock import RUNTIME_DIR_VARIABLE


@dataclass(slots=True)
class Server:
    process: subprocess.Popen[str]
    base: str
    ready_line: str

    def stop(self) -> tuple[int, str]:
        """SIGTERM; exit code and everything that stood on standard error."""
        self.process.terminate()
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


Start = Callable[..., Server]


def calserve(*args: str) -> list[str]:
    return [sys.executable, "-m", "calserve.cli", *args]


def environment(runtime: Path) -> dict[str, str]:
    return {**os.environ, RUNTIME_DIR_VARIABLE: str(runtime)}
