"""`calserve pack --replay`: a package built again from its record, and held against it.

Owns what must be equal before the work and what is compared after it. Must not know how a package is made. A record
that another machine wrote is material, not an order: it chooses among the options a person has, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from calserve.package.fault import PackageError
from calserve.package.hub import HUB_PREFIX
from calserve.package.pack.build import PackReport, pack_source
from calserve.package.pack.open_source import open_source
from calserve.package.pack.options import PackOptions
from calserve.package.pack.provenance import Provenance, read_provenance, tool_versions
from calserve.package.pack.source import Source
from calserve.progress import Progress


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """pack: of the new package. differing: files whose content is not the recorded one. tools: `name recorded here`
    of each version that differs; empty unless other tools were allowed."""

    pack: PackReport
    differing: tuple[str, ...]
    tools: tuple[str, ...]


def replay(
    record: Path, named: str, target: Path, options: PackOptions, is_other_tools: bool, progress: Progress
) -> ReplayReport:
    """Build the package of `record` again into `target`.

    named: where the source is; empty for the recorded name, in the working directory or on a hub. options: of these
    only force and cache are taken. is_other_tools: go on although tools have other versions than recorded.
    Raises PackageError: no record, another source, other tools, and whatever packing raises.
    """
    recorded = read_provenance(record)
    tools = _other_tools(recorded)
    if tools and not is_other_tools:
        raise PackageError(
            "replay_tools",
            f"The package was made with other tools ({'; '.join(tools)}); install those, or add --other-tools to see "
            "which files come out differently.",
        )
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
    rebuilt = read_provenance(target)
    names = sorted(recorded.outputs.keys() | rebuilt.outputs.keys())
    differing = [name for name in names if recorded.outputs.get(name) != rebuilt.outputs.get(name)]
    return ReplayReport(report, tuple(differing), tools)


def _other_tools(recorded: Provenance) -> tuple[str, ...]:
    here = tool_versions(tuple(recorded.tools))
    return tuple(
        f"{name[:80]} {was[:40]}, here {here[name]}" for name, was in recorded.tools.items() if here.get(name) != was
    )


def _find(name: str, named: str) -> Path | str:
    """Where the source is. A recorded name is never a way to a place: only its last part is looked for, here."""
    if named:
        return named
    if name.startswith(HUB_PREFIX):
        return name
    here = Path(Path(name).name)
    if not here.exists():
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
