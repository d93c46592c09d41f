"""`calserve pack --replay`: a package built again from its record, and held against it.

Owns what must be equal before the work and what is compared after it. Must not know how a package is made. A record
that another machine wrote is material, not an order: it chooses among the options a person has, and nothing else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from calserve.package.fault import PackageError
from calserve.package.hub import HUB_PREFIX
from calserve.package.pack.build import PackReport, pack_source
from calserve.package.pack.open_source import open_source
from calserve.package.pack.options import PackOptions
from calserve.package.pack.provenance import (
    Provenance,
    differing_outputs,
    is_sim_record,
    other_tools,
    read_provenance,
)
from calserve.package.pack.source import Source
from calserve.progress import Progress

if TYPE_CHECKING:
    from calserve.package.pack.sim_target import SimPackReport


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """pack: of the new package. differing: files whose content is not the recorded one. tools: `name recorded here`
    of each version that differs; empty unless other tools were allowed."""

    pack: PackReport | SimPackReport
    differing: tuple[str, ...]
    tools: tuple[str, ...]


def replay(
    record: Path, named: str, target: Path, options: PackOptions, is_other_tools: bool, progress: Progress
) -> ReplayReport:
    """Build the package of `record` again into `target`.

    named: where the source is (for a simulated board's package: the geometry); empty for the recorded name, in the
    working directory, on a hub or of what ships. options: of these
    only force and cache are taken. is_other_tools: go on although tools have other versions than recorded.
    Raises PackageError: no record, another source, other tools, and whatever packing raises.
    """
    if is_sim_record(record):
        from calserve.package.pack.replay_sim import replay_sim

        return ReplayReport(*replay_sim(record, named, target, options.force, is_other_tools, progress))
    recorded = read_provenance(record)
    tools = other_tools(recorded.tools, is_other_tools)
    wanted = recorded.options
    settled = replace(
        options,
        profiles=wanted.profiles,
        context=wanted.context,
        weights=wanted.weights,
        numerics=wanted.numerics,
        reference=wanted.reference,
        alias=wanted.alias,
    )
    source = open_source(_find(recorded.source.name, named), settled, progress)
    _check_same(source, recorded, progress)
    report = pack_source(replace(source, name=recorded.source.name), target, settled, progress)
    return ReplayReport(report, differing_outputs(recorded.outputs, read_provenance(target).outputs), tools)


def _find(name: str, named: str) -> Path | str:
    """Where the source is. A recorded name is never a way to a place: only its last part is looked for, here."""
    if named:
        return named
    if name.startswith(HUB_PREFIX):
        return name
    here = Path(Path(name).name)
    if not os.path.exists(here):  # false for a name that no file can have, where Path raises
        raise PackageError("replay_source", f"{name[:200]} is not in this directory; name it after --replay FILE.")
    return here


def _check_same(source: Source, recorded: Provenance, progress: Progress) -> None:
    with progress.step("Comparing the source with the record"):
        digest, files = source.digest()
    if source.kind != recorded.source.kind or digest != recorded.source.sha256:
        other = sorted(n for n in files.keys() | recorded.source.files if files.get(n) != recorded.source.files.get(n))
        where = f" ({', '.join(other)[:200]})" if other else ""
        raise PackageError(
            "replay_source",
            f"{source.name} is not the recorded source {recorded.source.name[:200]}: its contents differ{where}.",
            recorded.source.sha256,
            digest,
        )
