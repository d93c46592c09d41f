"""`calserve combine`: two packages of one chip each into one of two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from calserve.cli.app import app
from calserve.cli.outputs import check_directory
from calserve.cli.refusals import told_in_one_sentence
from calserve.stopping import stopping_on


@app.command()
def combine(
    a: Annotated[Path, typer.Argument(help="The package for chip 0.")],
    b: Annotated[Path, typer.Argument(help="The package for chip 1.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The package directory to make.")],
    alias_a: Annotated[str, typer.Option(help="Name to serve A under; its own by default.")] = "",
    alias_b: Annotated[str, typer.Option(help="Name to serve B under; its own by default.")] = "",
    force: Annotated[bool, typer.Option(help="Replace an existing package.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Combine two packages of one chip each: A on chip 0, B on chip 1, under one manifest and one address plan."""
    with told_in_one_sentence(), stopping_on():
        from dataclasses import asdict

        from calserve.package.combine import CombineOptions
        from calserve.package.combine import combine as combine_packages
        from calserve.progress import choose_progress

        check_directory(out, "-o", a, b)
        options = CombineOptions(alias_a, alias_b, force)
        report = combine_packages(a, b, out, options, choose_progress())
        models = ", ".join(f"{alias} on chip {chip}" for alias, chip in report.models.items())
        size = f"{report.total_bytes / 1e6:.0f} MB in {report.seconds:.1f} s"
        text = f"{report.target}: {models}, {size}, {report.hash[:12]}"
        typer.echo(json.dumps(asdict(report), default=str, indent=1) if as_json else text)
