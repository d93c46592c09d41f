"""Each guard of the core and the executor has a mutant that the soak's oracle catches by name, and only the mutant.

The runs are those of `mutant_plans`, by a process of their own (`mutant_runner`) that has no assertions, over a copy of
the source.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from mutant_plans import SCENARIOS, plan_of
from mutants import MUTANTS
from mutation import Mutant, Patch

import calserve

SEEDS = (1, 2)
RUNNER = Path(__file__).with_name("mutant_runner.py")
# virtual time passes in a second or two; this is for a mutant that never comes to an end
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def unpatched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source, compiled without assertions: a copy of it in turn compiles only what was patched."""
    source = tmp_path_factory.mktemp("unpatched")
    shutil.copytree(Path(calserve.__file__).parent, source / "calserve", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run((sys.executable, "-O", "-m", "compileall", "-q", str(source)), check=True, timeout=TIMEOUT_S)
    return source


def run(source: Path, scenario: str, plans: Path) -> subprocess.CompletedProcess[str]:
    plans.write_bytes(msgspec.json.encode([plan_of(scenario, seed) for seed in SEEDS]))
    command = (sys.executable, "-O", str(RUNNER), str(source), str(plans))
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", sorted({mutant.scenario for mutant in MUTANTS}))
def test_unpatched_code_in_the_scenario_of_a_mutant_breaks_nothing(
    unpatched: Path, scenario: str, tmp_path: Path
) -> None:
    done = run(unpatched, scenario, tmp_path / "plans.json")
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (0, [f"seed {seed}: clean" for seed in SEEDS]), done


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught_by_name(unpatched: Path, mutant: Mutant, tmp_path: Path) -> None:
    shutil.copytree(unpatched, tmp_path / "source")
    for patch in mutant.patches:
        patch.apply(tmp_path / "source")
    done = run(tmp_path / "source", mutant.scenario, tmp_path / "plans.json")
    assert done.returncode == 3, f"{mutant.name} was not caught: {done.stdout}{done.stderr}"
    caught = re.search(r"^seed \d+: (I\d+): .+", done.stdout, re.MULTILINE)
    assert caught is not None, done.stdout
    assert caught.group(1) in mutant.caught_by, done.stdout


def test_mutants_have_names_of_their_own_and_scenarios_that_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
    assert {mutant.scenario for mutant in MUTANTS} == set(SCENARIOS)


@pytest.mark.parametrize("old", ["nowhere", "twice"])
def test_patch_that_does_not_fit_exactly_once_is_refused(tmp_path: Path, old: str) -> None:
    (tmp_path / "calserve").mkdir()
    (tmp_path / "calserve" / "one.py").write_text("twice, twice")
    with pytest.raises(ValueError, match="times, not once"):
        Patch("one.py", old, "").apply(tmp_path)
    assert (tmp_path / "calserve" / "one.py").read_text() == "twice, twice"
