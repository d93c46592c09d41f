"""The record of a run: enough to run it again, here or on a later commit, and to say what came of it.

Owns: the file's schema, how it is written, and what is held against it when it is read. Must not know: how a run is
carried out. A record is written before a run starts and again when it ends, so a crash of the soak leaves one too.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from calserve import __version__
from calserve.simulate.plan import HOUR, RunPlan
from calserve.simulate.plan_check import doubt_about_plan
from calserve.simulate.result import EraMark
from calserve.whole_file import replace_file

SCHEMA = "calserve-soak-record/v1"
MAX_BYTES = 64 << 20
# Of a run that came to its end, of one whose end a finding was, and of one that was cut off.
ENDED, VIOLATED, UNFINISHED = ("clean", "weak"), "violated", ("running", "crashed", "stopped")
VERDICTS = (*ENDED, VIOLATED, *UNFINISHED)
DIGEST = "content_sha256"
_SHA256 = re.compile("[0-9a-f]{64}")


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
    """verdict: running, clean, weak, violated, crashed, or stopped by a signal. hashes: of the run's record, after each
    era; marks: what each era had in it.

    content_sha256: of all the rest, as `content_digest` has it, so that a file that was changed by hand shows. It is no
    signature: whoever changes a record on purpose can make it anew. "" in a record of before there was one.
    """

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
    marks: list[EraMark] = field(default_factory=list)
    content_sha256: str = ""


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


def content_digest(tree: Mapping[str, Any]) -> str:
    """SHA-256 of a record's JSON without its own digest: keys sorted, no spaces, ASCII."""
    rest = {name: value for name, value in tree.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_record(record: Record, path: Path) -> None:
    """Replace `path` in one piece. Raises OSError that names it."""
    # by way of JSON, so that a reader makes the digest of what it reads
    tree = json.loads(json.dumps(msgspec.to_builtins(record)))
    replace_file(path, json.dumps({**tree, DIGEST: content_digest(tree)}, indent=1))


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
        record = msgspec.convert(tree, Record, strict=True)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: this version cannot replay it: {str(error)[:300]}.") from None
    unknown = next(_unknown_keys(tree, msgspec.to_builtins(record)), "")
    doubt = f"there is no {unknown}." if unknown else doubt_about_plan(record.plan) or _doubt_about(record)
    if doubt:
        raise RecordError(f"{path}: this version cannot replay it: {doubt[:400]}")
    return record


def is_as_written(path: Path, record: Record) -> bool:
    """Whether nothing was changed since a record was written; also of one that is older than the digest."""
    return not record.content_sha256 or record.content_sha256 == content_digest(json.loads(path.read_bytes()))


def _unknown_keys(given: Any, known: Any, where: str = "") -> Iterator[str]:
    """Keys that a reader would drop in silence."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            own = f"{where}.{key}" if where else str(key)
            if key in known:
                yield from _unknown_keys(value, known[key], own)
            else:
                yield own[:200]
    elif isinstance(given, list):
        for at, (value, other) in enumerate(zip(given, known, strict=False)):
            yield from _unknown_keys(value, other, f"{where}[{at}]")


def _doubt_about(record: Record) -> str:
    """What contradicts itself in a record whose plan is sound."""
    eras, hours = len(record.plan.eras), record.plan.duration_ns / HOUR
    if record.verdict not in VERDICTS:
        return f"verdict is {record.verdict[:60]!r}, not one of {', '.join(VERDICTS)}."
    if not math.isclose(record.hours, hours, rel_tol=1e-6):
        return f"hours is {record.hours:g}, and the eras of its plan are {hours:g} hours."
    if any(not _SHA256.fullmatch(each) for each in record.hashes):
        return "hashes are SHA-256, 64 hexadecimal digits each."
    if len(record.hashes) > eras or (record.verdict in ENDED and len(record.hashes) < eras):
        return f"the verdict is {record.verdict}, and there are {len(record.hashes)} hashes for {eras} eras."
    return ""
