"""`calserve run`: a package's goldens on its board, by the fixed runner of `accept.runner`."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from calserve.cli.app import app
from calserve.cli.outputs import check_file
from calserve.cli.ranges import ranged
from calserve.cli.refusals import Refusal, told_in_one_sentence

if TYPE_CHECKING:
    from calserve.accept.runner import RunReport

EXIT_FOUND = 3


@app.command()
def run(
    package: Annotated[Path, typer.Argument(help="A package directory, of one model or combined.")],
    golden: Annotated[bool, typer.Option("--golden", help="Run the goldens: the one thing there is to run.")] = False,
    concurrent: Annotated[bool, typer.Option("--concurrent", help="Then all models at once, on their chips.")] = False,
    rounds: Annotated[int, ranged(1, 10, "Timed rounds of --concurrent; one round proves no overlap.")] = 5,
    board_profile: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Of a simulated board: by name or from a YAML file; the package's own by default."),
    ] = None,
    json_path: Annotated[Optional[Path], typer.Option("--json", help="Also write the report here.")] = None,  # noqa: UP045
) -> None:
    """Run a package's goldens on its board and check outputs and trace. Exit code 3 when something is found."""
    with told_in_one_sentence():
        if not golden:
            raise Refusal("calserve run takes --golden: the goldens are what there is to run.")
        check_file(json_path, "--json", package)
        from calserve.accept.runner import RunOptions, run_goldens
        from calserve.cli.boards import open_runner_board
        from calserve.cli.trusted import sealed_package
        from calserve.package.reader import models_of, open_tree
        from calserve.progress import choose_progress
        from calserve.whole_file import replace_file

        progress = choose_progress()
        with progress.step(f"Checking {package}"):
            sealed = sealed_package(package)  # what is checked is what is run
            tree = open_tree(package, sealed)
            models = models_of(tree)
        if concurrent and len(models) == 1:
            raise Refusal(f"{package} holds one model, and nothing to run beside it; leave --concurrent out.")
        board, clock = open_runner_board(models, board_profile)
        with closing(board):
            report = run_goldens(board, tree, models, RunOptions(clock, concurrent, rounds), progress)
        _print(report)
        if json_path is not None:
            replace_file(json_path, json.dumps(asdict(report), indent=1) + "\n")
        raise typer.Exit(EXIT_FOUND if report.findings else 0)


def _print(report: RunReport) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    where = f"{'simulated ' if report.simulated else ''}board {report.board}"
    table = Table(title=f"goldens of package {report.package[:12]} on {where}")
    for name in ("model", "chips", "goldens", "steps", "alone (ms a round)"):
        table.add_column(name)
    for model in report.models:
        mean = sum(model.alone_ns) / len(model.alone_ns) / 1e6 if model.alone_ns else 0.0
        chips = ", ".join(map(str, model.chips))
        table.add_row(model.model, chips, str(model.goldens), str(model.steps), f"{mean:.1f}" if mean else "")
    console.print(table)
    if report.overlap is not None:
        joint = sum(report.joint_ns) / len(report.joint_ns) / 1e6
        shared = report.shared_ns / sum(report.joint_ns)
        plain = f"together: {joint:.1f} ms a round, {report.overlap.words()}, {shared:.0%} of it with both computing"
        console.print(plain, highlight=False, markup=False)
    for finding in report.findings:
        console.print(f"{finding.check}: {finding.detail}", highlight=False, markup=False, soft_wrap=True)
    if not report.findings:
        console.print("every golden passed, and everything ran where it was compiled for", highlight=False)
