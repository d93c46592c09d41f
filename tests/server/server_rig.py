"""A server process, and how one is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from calserve.runtime import sim
from calserve.runtime.lock import RUNTIME_DIR_VARIABLE

PROFILES = Path(sim.__file__).parent / "profiles"


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


# Times that let a simulated board start, step and recover in milliseconds.
QUICK_NS = {
    "prefill_base_ns": 200_000,
    "prefill_token_ns": 1_000,
    "d2d_token_ns": 1_000,
    "configure_ns": 1_000_000,
    "reset_ns": 1_000_000,
}


def quick_profile(path: Path, base: str, step_ns: int = 1_000_000, **board: Any) -> Path:
    """A board profile at `path`: the shipped one `base`, quick, with figures of its board replaced."""
    tree = yaml.safe_load((PROFILES / f"{base}.yaml").read_text("utf-8"))
    tree["name"] = path.stem
    steps = dict.fromkeys(tree["timing"]["decode_ns"]["value"], step_ns)
    for section, figures in (("timing", {**QUICK_NS, "decode_ns": steps}), ("board", board)):
        for name, value in figures.items():
            tree[section][name] = {"value": value, "assumed": "quick enough for a test"}
    path.write_text(yaml.safe_dump(tree), "utf-8")
    return path
