"""The host's part of the bench by hand: ratios of pairs, what is counted as a step, allocations, the side itself."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from calserve.bench.conversion import ConversionRow, Cost, count_allocations, measure_conversions
from calserve.bench.host import HostCosts, OverheadSamples, print_host
from calserve.bench.overhead import COLD_STEPS, OverheadSide, _Stamps
from calserve.bench.report import write_json
from calserve.bench.run import BenchOptions, run_bench
from calserve.bench.sides import BenchError
from calserve.bench.workload import Work
from calserve.core.commands import SubmitJob
from calserve.core.events import JobDone
from calserve.core.job import Bank, JobSpec, LogitsWanted, Row, Task
from calserve.package.reader import open_package
from calserve.progress import SilentProgress
from calserve.runtime.openvino import OpenVinoBoard


def test_overhead_ratio_is_the_median_of_pairs() -> None:
    """The second pair stood in a slow minute; the third has one stall, which only the 99th percentile sees."""
    samples = OverheadSamples(1)
    samples.loop = [[100] * 100, [300] * 100, [100] * 100]
    samples.executor = [[102] * 100, [306] * 100, [102] * 98 + [500] * 2]
    assert samples.ratio(0.5) == 1.02
    assert samples.ratio(0.99) == 1.02
    samples.executor[1] = [306] * 98 + [900] * 2
    assert samples.ratio(0.99) == 3.0


def test_overhead_noise_is_the_loop_against_itself() -> None:
    samples = OverheadSamples(1, loop=[[100] * 10, [110] * 10, [100] * 10])
    assert samples.noise(0.5) == 1.1
    assert OverheadSamples(1, loop=[[100]]).noise(0.5) == 1.0


def test_overhead_steps_are_those_of_full_decode_jobs() -> None:
    """A prefill, and a step with a row missing, are none; nor is what begins with their end."""

    def spec(job: int, task: Task, rows: int) -> SubmitJob:
        made = tuple(Row(f"r{i}", i, (i,), 5, 1, LogitsWanted.LAST) for i in range(rows))
        return SubmitJob(JobSpec(job, 1, "s", "g", task, Bank.AUTO, 0, made))

    stamps = _Stamps()
    stamps.begin(2)
    done = [JobDone(job, 1, ()) for job in range(6)]
    stamps(0, done[0], [spec(1, Task.PREFILL, 2)])
    stamps(10, done[1], [spec(2, Task.DECODE, 2)])
    stamps(30, done[2], [spec(3, Task.DECODE, 1)])
    stamps(60, done[3], [spec(4, Task.DECODE, 2)])
    stamps(100, done[4], [spec(5, Task.DECODE, 2)])
    stamps(150, done[5], [])
    assert stamps.durations == [50]


def test_tables_say_what_was_reached() -> None:
    samples = OverheadSamples(16, loop=[[20_000_000] * 200] * 2, executor=[[20_500_000] * 200, [20_900_000] * 200])
    cost = Cost(1000, 1, 2 << 20, 3 << 20)
    text = io.StringIO()
    print_host(HostCosts((samples,), (ConversionRow(16, 151_936, 1, cost, cost),)), Console(file=text, width=200))
    p50, p99 = (line for line in text.getvalue().splitlines() if "P50" in line or "P99" in line)
    assert "1.035" in p50
    assert "no" in p50
    assert "yes" in p99
    assert "151936" in text.getvalue()


def test_json_has_every_step(tmp_path: Path) -> None:
    costs = HostCosts((OverheadSamples(1, [[1, 2]], [[3, 4]]),), ())
    write_json(tmp_path / "b.json", [], {}, costs.as_json())
    host = json.loads((tmp_path / "b.json").read_text())["host"]
    assert host["overhead"] == [{"batch": 1, "loop_ns": [[1, 2]], "executor_ns": [[3, 4]]}]


def test_allocations_count_arrays_that_come_and_go() -> None:
    def two_arrays() -> object:
        first = np.zeros(10_000, np.uint8)
        second = np.zeros(30_000, np.uint8)
        del first
        return second

    arrays, size, peak = count_allocations(two_arrays)
    assert (arrays, size) == (2, 40_000)
    assert 40_000 <= peak < 50_000
    assert count_allocations(lambda: None)[:2] == (0, 0)


@pytest.mark.slow
def test_conversion_allocates_the_result_and_nothing_else() -> None:
    """Seed 003, section 10.1. The two-step form allocates the whole tensor once more."""
    rows = list(measure_conversions())
    assert [(r.tile, r.vocab, r.rows) for r in rows] == [
        (tile, vocab, n) for tile in (1, 16) for vocab in (49_152, 151_936) for n in (1, 16)
    ]
    for row in rows:
        result = 4 * row.vocab * row.rows
        assert (row.direct.arrays, row.direct.bytes) == (1, result)
        assert (row.two_step.arrays, row.two_step.bytes) == (2, 2 * result)
        assert row.direct.peak_bytes < result + 64 * 1024  # numpy casts in pieces of 8,192


@pytest.mark.slow
def test_overhead_side_counts_as_many_steps_on_both_sides(tiny_package: Path, tmp_path: Path) -> None:
    side = OverheadSide(open_package(tiny_package), OpenVinoBoard.open(1, lock_directory=tmp_path))
    prompts = tuple(tuple(range(5 + i, 25 + i)) for i in range(4))
    for _ in range(2):  # each side first once
        answer = side.run(Work(prompts, 20))
        assert [len(answer["loop"]), len(answer["executor"])] == [20, 20]
        assert all(ns > 0 for ns in answer["loop"] + answer["executor"])
    side.close()
    assert COLD_STEPS > 0


def test_bench_part_by_a_wrong_name_is_refused() -> None:
    with pytest.raises(BenchError, match="no part 'host2'"):
        run_bench(BenchOptions(Path("none"), None, part="host2"), SilentProgress(), Console())
