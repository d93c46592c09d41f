"""`calserve soak --wall`: the real server on real time, from options to an exit code."""

from __future__ import annotations

import json

from rich.console import Console

from calserve.cli.refusals import Refusal
from calserve.progress import choose_progress
from calserve.simulate.wall import WallOptions, print_report, run_wall_soak

# A check was out of its bounds: distinct from a refusal, which soaked nothing.
EXIT_FAILED = 3


def run_soak_wall(options: WallOptions, as_json: bool) -> int:
    """Soak and print what was found; 0 when every check is in its bounds, else 3."""
    report = run_wall_soak(options, choose_progress())
    if as_json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        print_report(report, Console())
    if report.unwritten:
        raise Refusal(report.unwritten)
    return 0 if report.passed else EXIT_FAILED
