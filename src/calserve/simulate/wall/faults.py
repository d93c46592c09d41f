"""What goes wrong on the simulated board during a soak.

Owns the plan that is drawn when none is given. Must not know what the faults do. Every process gets a plan of its
own: one plan for all would end each of them at the same job.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from calserve.runtime.sim.faults import FaultPoint, load_fault_plan, random_plan
from calserve.simulate.wall.options import WallOptions
from calserve.whole_file import replace_file

PLAN_NAME = "soak-wall-faults.json"
# About one point in two, each some minutes apart at sixty jobs a second.
ACTIVATE, MEAN_GAP, LATE_NS = 0.5, 8000, 200_000_000
# These put a model out of service for good, as they should; a plan that is given may name them.
LASTING = frozenset({FaultPoint.CONFIGURE_FAILS, FaultPoint.OUTPUT_SHORT})
POINTS = tuple(point for point in FaultPoint if point not in LASTING)


def choose_plan(options: WallOptions) -> tuple[Path | None, Callable[[int], None]]:
    """The plan's file, and what is to be done before each start; no file where nothing is made to fail.

    Raises FaultPlanError for a given plan that is none.
    """
    if options.board != "sim" or not options.has_faults:
        return None, lambda _: None
    if options.fault_plan is not None:
        load_fault_plan(options.fault_plan)  # said now, not by a server that ends
        return options.fault_plan, lambda _: None
    path = options.out / PLAN_NAME

    def write(starts: int) -> None:
        plan = random_plan(options.seed * 10_000 + starts, POINTS, ACTIVATE, MEAN_GAP, LATE_NS)
        replace_file(path, json.dumps(plan.describe(), indent=1))

    return path, write
