"""What a load takes of a board, and the plan that shows it beside its estimate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calserve.accept.driver import Stopped
from calserve.accept.measure import measure, read_measured, write_measured
from calserve.cli.app import app
from calserve.package import PackageError, open_package
from calserve.package.geometry import load_geometry
from calserve.package.pack.sim_target import SimOptions, pack_sim
from calserve.progress import SilentProgress
from calserve.runtime.contract import Telemetry
from calserve.runtime.sim import PROFILES, SimBoard

LANES = PROFILES["assumed-lanes"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("measure") / "small"
    pack_sim(load_geometry("smollm2-135m"), target, SimOptions(), SilentProgress())
    return target


class Rising(SimBoard):
    """A board whose memory in use rises by itself, as one that touches memory late: one value a reading."""

    readings: list[int | None]

    def telemetry(self, chip: int) -> Telemetry:
        return Telemetry(memory_used=self.readings.pop(0), memory_total=1)


def rising(*readings: int | None) -> Rising:
    board = Rising(LANES)
    board.readings = list(readings)
    return board


def test_measure_of_a_load_reads_the_address_plan_and_its_end(small: Path) -> None:
    package, board = open_package(small), SimBoard(LANES)
    seen = measure(board, package, (1,))
    held: dict[str, int] = {}
    for section in package.sections:
        held[section.kind] = held.get(section.kind, 0) + section.byte_count
    assert seen.uses == held
    end = max(section.address + section.byte_count for section in package.sections)
    assert (seen.delta_bytes, seen.prefill_bytes, seen.decode_bytes) == ({1: end}, {1: 0}, {1: 0})
    assert seen.settled_bytes == {1: 0}
    assert seen.package_hash == package.hash


def test_measure_takes_the_rise_at_the_longest_prefill_for_the_workspace(small: Path) -> None:
    """Readings: before, loaded, after the prefill, after the decode, after the release."""
    board = rising(100, 1100, 10**12, 2100, 150)
    seen = measure(board, open_package(small), (0,))
    assert seen.delta_bytes == {0: 1000}
    assert seen.uses["workspace"] == seen.prefill_bytes[0] == 10**12 - 1100
    assert seen.decode_bytes == {0: 1000}
    assert seen.settled_bytes == {0: 50}


def test_measure_keeps_what_a_board_does_not_show_as_unknown(small: Path) -> None:
    seen = measure(rising(None, None, None, None, None), open_package(small), (0,))
    assert seen.delta_bytes == {0: None}
    assert seen.peak_bytes is None


def test_measure_of_a_board_that_refuses_stops_with_its_code(small: Path) -> None:
    with pytest.raises(Stopped, match="configure gave code 1"):
        measure(SimBoard(replace(LANES, dram_bytes=1)), open_package(small), (0,))


def test_measured_load_is_read_back_for_its_own_package_only(small: Path, tmp_path: Path) -> None:
    package = open_package(small)
    seen = measure(SimBoard(LANES), package, (0,))
    write_measured(seen, tmp_path / "m.json")
    assert read_measured(tmp_path / "m.json", package) == seen
    with pytest.raises(PackageError, match="was measured with package"):
        read_measured(tmp_path / "m.json", replace(package, hash="0" * 64))
    (tmp_path / "m.json").write_text("{}")
    with pytest.raises(PackageError, match=r"m\.json"):
        read_measured(tmp_path / "m.json", package)


def test_plan_shows_the_measured_load_beside_the_estimate(small: Path, tmp_path: Path) -> None:
    record = tmp_path / "measured" / "m.json"
    first = CliRunner().invoke(app, ["plan", str(small), "--measure", "--record", str(record), "--json"])
    assert first.exit_code == 0, first.output
    plan = json.loads(first.stdout)[0]
    assert plan["measured"]["uses"]["kv"] == plan["chips"][0]["uses"]["kv"]["bytes"] == 2 * 30 * 3 * 64 * 2 * 4096 * 16
    later = CliRunner().invoke(app, ["plan", str(small), "--measured", str(record)])
    assert later.exit_code == 0, later.output
    assert "measured rise at the load: chip 0 1.5" in later.stdout
    assert "measured left after the release: chip 0 0.000 GiB" in later.stdout


@pytest.mark.slow
def test_plan_measures_the_embedded_board_and_then_knows_its_workspace(tiny_package: Path) -> None:
    before = CliRunner().invoke(app, ["plan", str(tiny_package), "--dram", "4", "--json"])
    assert json.loads(before.stdout)[0]["chips"][0]["uses"]["workspace"]["bytes"] is None
    after = CliRunner().invoke(app, ["plan", str(tiny_package), "--dram", "4", "--measure", "--json"])
    assert after.exit_code == 0, after.output
    plan = json.loads(after.stdout)[0]
    assert plan["chips"][0]["uses"]["workspace"]["bytes"] == plan["measured"]["uses"]["workspace"]
    assert plan["verdict"] == "fits"
