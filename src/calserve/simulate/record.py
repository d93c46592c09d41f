"""The record of a run: enough to run it again, here or on a later commit, and to say what came of it.

Owns: the file's schema, how it is written and read. Must not know: how a run is carried out. A record is written
before a run starts and again when it ends, so a crash of the soak leaves one too.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from calserve import __version__
from calserve.simulate.plan import RunPlan

SCHEMA = "calserve-soak-record/v1"
MAX_BYTES = 64 << 20


class RecordError(ValueError):
    """A record cannot be used; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Made:
    """By what a record was made. commit: "unknown" where the source is no repository."""

    commit: str
    version: str
    python: str


@dataclass(slots=True)
class Record:
    """verdict: running, clean, weak, violated or crashed. hashes: of the run's record, after each era."""

    plan: RunPlan
    made: Made
    verdict: str = "running"
    hours: float = 0.0
    hashes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    last_lines: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    sometimes: dict[str, int] = field(default_factory=dict)
    fired: dict[str, int] = field(default_factory=dict)
    proof: Mapping[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA


def made_here() -> Made:
    """This source: its commit, with a + where files differ from it."""
    root = Path(__file__).resolve().parents[3]
    commit = "unknown"
    if (root / ".git").exists():
        try:
            told = subprocess.run(
                ("git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+"),
                capture_output=True, text=True, timeout=10, check=True,
            )  # fmt: skip
            commit = told.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            commit = "unknown"
    return Made(commit, __version__, platform.python_version())


def write_record(record: Record, path: Path) -> None:
    """Replace `path` in one piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(msgspec.to_builtins(record), indent=1), encoding="utf-8")
    os.replace(beside, path)


def read_record(path: Path) -> Record:
    """Raises RecordError with one sentence for anything that is not a record this version can run again."""
    try:
        if not path.is_file():
            raise RecordError(f"{path}: there is no such record.")
        if path.stat().st_size > MAX_BYTES:
            raise RecordError(f"{path}: larger than {MAX_BYTES} bytes, so it is no record.")
        tree = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{path}: not JSON ({str(error)[:100]}).") from None
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if schema != SCHEMA:
        raise RecordError(f"{path}: schema is {str(schema)[:60]!r}, this version replays {SCHEMA}.")
    try:
        return msgspec.convert(tree, Record, strict=True)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: this version cannot replay it: {error}.") from None
