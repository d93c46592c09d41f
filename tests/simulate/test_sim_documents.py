"""`docs/fault-plan.md` and `docs/board-profile.md` are what the code says now, and their examples can be used."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from soak_rig import calserve

from calserve.runtime.contract import CAPABILITIES
from calserve.runtime.sim import PROFILES, FaultPoint, load_fault_plan
from calserve.runtime.sim.fault_document import POINTS
from calserve.runtime.sim.fault_document import page as fault_page
from calserve.runtime.sim.faults import SCHEMA
from calserve.runtime.sim.profile_document import FIGURES, sections
from calserve.runtime.sim.profile_document import page as profile_page

DOCS = Path(__file__).parents[2] / "docs"


def test_pages_are_what_their_modules_write() -> None:
    assert (DOCS / "fault-plan.md").read_text("utf-8") == fault_page(), "write them anew: make docs"
    assert (DOCS / "board-profile.md").read_text("utf-8") == profile_page(), "write them anew: make docs"


def test_every_fault_point_stands_in_the_page_with_an_example_that_is_a_plan() -> None:
    assert list(POINTS) == list(FaultPoint)
    page = (DOCS / "fault-plan.md").read_text("utf-8")
    named = []
    for name, example in re.findall(r"^\| `(\w+)` \|.*\| `(- \{.*\})` \|$", page, re.MULTILINE):
        plan = load_fault_plan(f"schema: {SCHEMA}\nfaults:\n  {example}\n")
        assert {point.value for point in plan.active} == {name}
        named.append(name)
    assert named == [point.value for point in FaultPoint]


def test_every_plan_in_the_page_is_one() -> None:
    plans = re.findall(r"```yaml\n(.*?)```", (DOCS / "fault-plan.md").read_text("utf-8"), re.DOTALL)
    kinds = [set(yaml.safe_load(plan)) - {"schema"} for plan in plans]
    assert kinds == [{"faults"}, {"random"}]
    assert [len(load_fault_plan(plan).describe()) for plan in plans] == [2, 2]


def test_every_figure_and_capability_of_a_profile_stands_in_its_page() -> None:
    assert {section: tuple(names) for section, names in FIGURES.items()} == sections()
    page = (DOCS / "board-profile.md").read_text("utf-8")
    assert [name for name in (*CAPABILITIES, *PROFILES) if f"`{name}`" not in page] == []
    assert [line for line in page.splitlines() if len(line) > 130] == []


def test_help_names_the_page_of_fault_plans() -> None:
    for command in ("serve", "soak"):
        assert "docs/fault-plan.md" in "".join(calserve(command, "--help").output.split())
