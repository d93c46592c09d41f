"""What a package takes of a board when it is loaded and used: the other column of a plan.

Owns: the order of readings around a load. Must not know: what was estimated, or which board it is given. A board that
shows no memory gives None; what it shows as its total is read by nobody.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Literal

import msgspec

from calserve import strict_yaml
from calserve.accept.driver import Driver, SequenceSet, Stopped
from calserve.core.job import Task
from calserve.package.fault import PackageError
from calserve.package.plan import Measured
from calserve.runtime.contract import Board, BoardPackage, LoadOptions, Session
from calserve.whole_file import replace_file

SCHEMA = "calserve-measured/v1"
GENERATION = 1
DECODE_TOKENS = 3
Readings = Mapping[int, int | None]


def measure(board: Board, package: BoardPackage, chips: tuple[int, ...]) -> Measured:
    """Load `package` on these chips, prefill the longest prompt, decode in every lane, release; readings all along.

    Raises Stopped where the board does not do one of them.
    """
    before = _used(board, chips)
    options = LoadOptions(chips, package.numerics, package.max_lanes, package.max_lanes * package.context)
    code, session = board.configure(package, options, package.model, GENERATION)
    if code or session is None:
        raise Stopped(f"configure gave code {code}: {board.health().detail}".rstrip(": "))
    try:
        loaded = _used(board, chips)
        driver = Driver(session, GENERATION, time.perf_counter_ns, lambda: None)
        _work(driver, ((0,),), _longest_prompt(session, package))
        prefilled = _used(board, chips)
        lanes = tuple(range(_widest(session)))
        _work(driver, (lanes,), (1,) * 4)
        decoded = _used(board, chips)
        uses = _with_peak(session.memory(), _rise(loaded, prefilled))
    finally:
        code = session.close()
    if code:
        raise Stopped(f"release gave code {code}")
    return Measured(
        package_hash=package.hash,
        board=board.describe().name,
        uses=uses,
        delta_bytes=_rise(before, loaded),
        prefill_bytes=_rise(loaded, prefilled),
        decode_bytes=_rise(loaded, decoded),
        settled_bytes=_rise(before, _used(board, chips)),
    )


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """See `Measured`."""

    schema: Literal["calserve-measured/v1"]
    package_hash: str
    board: str
    uses: dict[str, int]
    delta_bytes: dict[int, int | None]
    prefill_bytes: dict[int, int | None]
    decode_bytes: dict[int, int | None]
    settled_bytes: dict[int, int | None]


def write_measured(measured: Measured, path: Path) -> None:
    replace_file(path, json.dumps({"schema": SCHEMA, **asdict(measured)}, indent=1) + "\n")


def read_measured(path: Path, package: BoardPackage) -> Measured:
    """What an earlier load of this very package took. Raises PackageError: one sentence."""
    try:
        file = msgspec.json.decode(strict_yaml.read_text(path, "measured load"), type=_File)
    except (strict_yaml.Wrong, msgspec.DecodeError) as error:
        raise PackageError("measured_form", f"{path}: {' '.join(str(error).split())[:200]}") from None
    if file.package_hash != package.hash:
        raise PackageError(
            "measured_package",
            f"{path} was measured with package {file.package_hash[:12]}, not with {package.hash[:12]}.",
            package.hash,
            file.package_hash,
        )
    return Measured(**{each.name: getattr(file, each.name) for each in fields(Measured)})


def _used(board: Board, chips: tuple[int, ...]) -> Readings:
    return {chip: board.telemetry(chip).memory_used for chip in chips}


def _rise(before: Readings, after: Readings) -> dict[int, int | None]:
    rise: dict[int, int | None] = {}
    for chip, first in before.items():
        last = after[chip]
        rise[chip] = None if first is None or last is None else last - first
    return rise


def _with_peak(uses: Mapping[str, int], prefill: Readings) -> dict[str, int]:
    """The session's own account, with the workspace that the longest prefill showed where that is more.

    What rose then holds the prompt's KV too where a board touches KV late, so this errs on the safe side.
    """
    peak = sum(rise or 0 for rise in prefill.values())
    return {**uses, "workspace": max(uses.get("workspace", 0), peak)}


def _work(driver: Driver, groups: tuple[tuple[int, ...], ...], prompt: tuple[int, ...]) -> None:
    sets = [SequenceSet(lanes, (prompt,) * len(lanes)) for lanes in groups]
    driver.run(sets, DECODE_TOKENS, 1)
    driver.release(sets)


def _longest_prompt(session: Session, package: BoardPackage) -> tuple[int, ...]:
    """As long as a graph takes at once and the context leaves room for a few tokens more. Ids that mean nothing."""
    able = [graph.profile.max_row_tokens for graph in session.graphs.values() if Task.PREFILL in graph.profile.tasks]
    length = min(max(able, default=1), package.context - DECODE_TOKENS)
    return tuple((17 * i + 3) % package.vocab_size for i in range(length))


def _widest(session: Session) -> int:
    able = [graph.profile.batch for graph in session.graphs.values() if Task.DECODE in graph.profile.tasks]
    return min(max(able, default=1), session.lanes)
