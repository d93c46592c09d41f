"""`calserve capabilities`: what a board can do, the evidence behind each, and what its vendor still owes."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from calserve.cli.app import app
from calserve.cli.boards import BOARDS, DEFAULT_SIM_PROFILE, open_board, package_profile
from calserve.cli.ranges import ranged
from calserve.cli.refusals import Refusal, told_in_one_sentence

if TYPE_CHECKING:
    from calserve.accept.claims import Claims
    from calserve.runtime.contract import Board, BoardFacts, BoardPackage


@dataclass(frozen=True, slots=True)
class CapabilityRow:
    """behind: the run that proves a C0; for what is less, what the state means."""

    name: str
    state: str
    behind: str


@app.command()
def capabilities(
    board: Annotated[Optional[str], typer.Option(help="openvino or sim; the package's own by default.")] = None,  # noqa: UP045
    board_profile: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="With --board sim: the kind of board, by name or from a YAML file."),
    ] = None,
    evidence: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="What `calserve conform` or `calserve prove` wrote."),
    ] = None,
    model: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A package directory: evidence of another package is void."),
    ] = None,
    chips: Annotated[int, ranged(1, 2, "Chips to open the board with.")] = 1,
    vendor: Annotated[bool, typer.Option("--vendor", help="What the vendor must deliver for all below C0.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The state of every capability of a board, C0 (proven) to C4 (not supported), and the evidence behind it."""
    with told_in_one_sentence():
        from calserve.accept.claims import load_claims

        claims = load_claims(evidence) if evidence is not None else None
        package = _package(model)
        with closing(_described(board, board_profile, package, chips)) as opened:
            facts = opened.describe()
        void = _void(claims, facts, package)
        rows = _rows(facts, claims, package)
        below = [row.name for row in rows if not row.state.startswith("C0")]
        tree = _tree(facts, rows, void, below if vendor else None)
        if as_json:
            typer.echo(json.dumps(tree, indent=1))
        else:
            _print(tree)


def _package(model: Path | None) -> BoardPackage | None:
    from calserve.package.reader import open_package

    return None if model is None else open_package(model)


def _described(name: str | None, profile: str | None, package: BoardPackage | None, chips: int) -> Board:
    """The board, only to be asked what it is: no lock is taken, so a served board can be asked about too."""
    name = name or (package.board if package else "sim" if profile else "openvino")
    if name not in BOARDS:
        raise Refusal(f"There is no board {name!r}; there are {' and '.join(BOARDS)}.")
    if package is not None and package.board != name:
        raise Refusal(f"{package.root} is a package for board {package.board}, not {name}.")
    if name == "sim":
        from calserve.runtime.sim import SimBoard
        from calserve.runtime.sim.profile import load_profile

        chosen = package_profile(package, profile) if package else load_profile(profile or DEFAULT_SIM_PROFILE)
        return SimBoard(chosen)
    if profile is not None:
        raise Refusal("--board-profile is for the simulated board; use it with --board sim.")
    return open_board(name, chips, is_shared=True)


def _void(claims: Claims | None, facts: BoardFacts, package: BoardPackage | None) -> str:
    """Why the evidence counts as none, as a sentence's end; "" where it counts or there is none."""
    from calserve.accept.evidence import why_void

    record = None if claims is None else claims.conformance or claims.jobs
    return "" if record is None else why_void(record, facts, package.hash if package else None)


def _rows(facts: BoardFacts, claims: Claims | None, package: BoardPackage | None) -> list[CapabilityRow]:
    from calserve.accept.claims import claims_of
    from calserve.accept.evidence import CONCURRENT_JOBS, doubt_about
    from calserve.accept.proven import StatedFacts
    from calserve.runtime.contract import CAPABILITIES, Evidence

    package_hash = package.hash if package else None
    jobs = claims.jobs if claims is not None else None
    is_proven = jobs is not None and not doubt_about(jobs, facts, package_hash or jobs.package_hash)
    path = str(claims.path) if claims is not None else ""
    stated = StatedFacts(claims_of(claims, facts, package_hash), CONCURRENT_JOBS, path if is_proven else "").of(facts)
    rows = []
    for name in CAPABILITIES:
        state = stated.capabilities.get(name, Evidence.C4)
        shown = state.name + (" (simulated)" if stated.simulated and state is Evidence.C0 else "")
        rows.append(CapabilityRow(name, shown, stated.proven_by.get(name, state.value)))
    return rows


def _tree(facts: BoardFacts, rows: list[CapabilityRow], void: str, below: list[str] | None) -> dict[str, Any]:
    from calserve.accept.vendor import items_for

    tree: dict[str, Any] = {
        "board": facts.name,
        "simulated": facts.simulated,
        "versions": dict(facts.versions),
        "figures_sha256": facts.figures_sha256,
        "capabilities": [{"name": row.name, "state": row.state[:2], "behind": row.behind} for row in rows],
    }
    if void:
        tree["void"] = void
    if below is not None:
        tree["vendor"] = [
            {
                "id": item.id,
                "priority": item.priority,
                "unlocks": [name for name in item.unlocks if name in below],
                "deliver": item.deliver,
                "accepted_by": list(item.accepted_by),
                "source": item.source,
            }
            for item in items_for(below)
        ]
    return tree


def _print(tree: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    versions = ", ".join(f"{name} {value}" for name, value in tree["versions"].items())
    table = Table(title=f"{'simulated ' if tree['simulated'] else ''}board {tree['board']} ({versions})")
    for name in ("capability", "state", "evidence"):
        table.add_column(name)
    for row in tree["capabilities"]:
        is_simulated = tree["simulated"] and row["state"] == "C0"
        table.add_row(row["name"], row["state"] + (" (simulated)" if is_simulated else ""), row["behind"])
    console.print(table)
    if "void" in tree:
        console.print(f"void: {tree['void']}", highlight=False, markup=False, soft_wrap=True)
    for item in tree.get("vendor", ()):
        text = f"{item['id']} {item['priority']} for {', '.join(item['unlocks'])}: {item['deliver']}"
        accepted = f"    accepted by {', '.join(item['accepted_by'])} ({item['source']})"
        console.print(f"{text}\n{accepted}", highlight=False, markup=False, soft_wrap=True)
