"""`calserve validate`: a package through the gates, as a table for people and JSON for machines."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from calserve.cli.app import app
from calserve.cli.outputs import check_file
from calserve.cli.refusals import Refusal, told_in_one_sentence

if TYPE_CHECKING:
    from rich.console import Console

    from calserve.package.gates import Verdict
    from calserve.progress import Progress

_MARKS = {"passed": "pass", "warned": "warnings", "failed": "FAIL", "not_run": "not run"}


@app.command()
def validate(
    package: Annotated[Path, typer.Argument(help="A package directory.")],
    fast: Annotated[bool, typer.Option("--fast", help="Do not hash contents; names and descriptions only.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Also configure it on its board and run its goldens.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    json_path: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--json", help="Write the verdict here as JSON; - for standard output, instead of the table."),
    ] = None,
) -> None:
    """Hold a package against gates A to F. Exit code 0: pass, also with warnings; 2: fail."""
    with told_in_one_sentence():
        if fast and full:
            raise Refusal("--fast looks at no contents and --full runs the package; choose one.")
        from calserve.progress import choose_progress

        check_file(None if json_path == Path("-") else json_path, "--json", package)
        verdict = _judge(package, fast, full, strict, choose_progress())
        _tell(verdict, json_path)
        raise typer.Exit(verdict.exit_code)


def _judge(path: Path, is_fast: bool, is_full: bool, is_strict: bool, progress: Progress) -> Verdict:
    from calserve.cli.trial import open_trial
    from calserve.cli.trusted import required_keys, sealed_package
    from calserve.package.gates import How, inspect, verdict_of

    trial = partial(open_trial, progress=progress) if is_full else None
    # Only what goes on a board asks for trust: to look at a package needs none.
    sealed = sealed_package(path) if is_full and required_keys() else None
    how = How(is_hashed=not is_fast, progress=progress, sealed=sealed, open_trial=trial)
    return verdict_of(inspect(path, how), is_strict)


def _tell(verdict: Verdict, json_path: Path | None) -> None:
    import msgspec
    from rich.console import Console

    from calserve.whole_file import replace_file

    text = msgspec.json.format(msgspec.json.encode(verdict), indent=2) + b"\n"
    if json_path == Path("-"):
        typer.echo(text.decode(), nl=False)
        return
    if json_path is not None:
        replace_file(json_path, text.decode())
    print_verdict(verdict, Console())


def print_verdict(verdict: Verdict, console: Console) -> None:
    """The gates, then every finding. Names come from the package and are shown as they are, never as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in ("gate", "looks at", "result"):
        table.add_column(column)
    for gate in verdict.gates:
        mark = _MARKS[gate.status] + (f" ({gate.findings + gate.dropped})" if gate.findings else "")
        table.add_row(gate.gate, gate.title, mark)
    console.print(table)
    for finding in verdict.findings:
        line = f"{finding.rule} {finding.severity}: {finding.sentence}"
        console.print(Text(line), soft_wrap=True)
    dropped = sum(gate.dropped for gate in verdict.gates)
    if dropped:
        console.print(Text(f"and {dropped} more."))
    if verdict.strict and verdict.verdict == "fail" and all(f.severity == "warning" for f in verdict.findings):
        console.print(Text("With --strict, warnings fail."))
    console.print(Text(f"{verdict.path}: {verdict.verdict.replace('_', ' ')}"), soft_wrap=True)
