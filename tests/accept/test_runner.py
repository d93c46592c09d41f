"""The fixed runner: its order on a good package, what it refuses before it configures, and what it finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from calserve.accept import runner as module
from calserve.accept.goldens import GoldenRun
from calserve.accept.overlap_ratio import overlap_ratio, shared_ns
from calserve.accept.runner import RunOptions, RunReport, check_targets, run_goldens
from calserve.cli.app import app
from calserve.core.commands import ResetScope
from calserve.package.combine import CombineOptions, combine
from calserve.package.geometry import load_geometry
from calserve.package.pack.sim_target import SimOptions, pack_sim
from calserve.package.reader import PackageTree, open_models, read_tree
from calserve.progress import SilentProgress
from calserve.runtime.contract import BoardPackage, LoadOptions, TraceSpan
from calserve.runtime.sim import PROFILES, Fault, FaultPlan, FaultPoint, SimBoard, SimProfile, VirtualClock, figures

LANES = PROFILES["assumed-lanes"]
# One current calbin, as the specification's board has, and chips that work side by side.
ONE_CALBIN = replace(LANES, calbins_per_board=1)
CONFIGURE_NS = 3_000_000_000
CONCURRENT = 2


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("run") / "single"
    pack_sim(load_geometry("smollm2-135m"), target, SimOptions(profiles=(1, 4)), SilentProgress())
    return target


@pytest.fixture(scope="module")
def both(single: Path) -> Path:
    other = single.parent / "other"
    pack_sim(load_geometry("llama-3.2-1b"), other, SimOptions(profiles=(1,)), SilentProgress())
    combine(single, other, single.parent / "both", CombineOptions(), SilentProgress())
    return single.parent / "both"


@dataclass
class Watched:
    """A board that keeps what it was asked to do. change: of a package on its way to `configure`."""

    board: SimBoard
    asked: list[str]
    change: Callable[[tuple[TraceSpan, ...]], tuple[TraceSpan, ...]] = lambda spans: spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self.board, name)

    def configure(self, package: BoardPackage, options: LoadOptions, name: str, generation: int) -> Any:
        self.asked.append(f"configure {name} on {options.chips}")
        return self.board.configure(package, options, name, generation)

    def counters(self) -> Any:
        self.asked.append("counters")
        return self.board.counters()

    def reset(self, scope: ResetScope, session: str | None) -> Any:
        self.asked.append(f"reset {scope.value} {session}")
        return self.board.reset(scope, session)

    def trace(self, since_ns: int) -> tuple[TraceSpan, ...]:
        return self.change(self.board.trace(since_ns))


def watched(profile: SimProfile = LANES, faults: FaultPlan | None = None) -> Watched:
    return Watched(SimBoard(profile, clock=VirtualClock(), faults=faults), [])


def run(board: Watched, path: Path, concurrent: bool = False, **changed: Any) -> RunReport:
    models = tuple(replace(model, **changed) for model in open_models(path))
    options = RunOptions(board.device.clock.now_ns, concurrent, CONCURRENT)
    return run_goldens(board, read_tree(path), models, options, SilentProgress())  # type: ignore[arg-type]


def found(report: RunReport) -> list[str]:
    return [finding.check for finding in report.findings]


# --- a good package -----------------------------------------------------------------------------------------------


def test_run_of_one_model_passes_its_goldens_and_leaves_the_board_empty(single: Path) -> None:
    board = watched()
    report = run(board, single)
    assert report.findings == []
    assert [(each.model, each.chips, each.goldens, each.steps) for each in report.models] == [
        ("smollm2-135m", (0,), 3, 3 * 16)
    ]
    assert board.asked == ["configure smollm2-135m on (0,)", "counters", "reset configuration None"]
    assert board.telemetry(0).memory_used == 0
    assert board.counters().left == 0


def test_run_of_a_combined_package_runs_each_alone_and_then_both_at_once(both: Path) -> None:
    board = watched()
    report = run(board, both, concurrent=True)
    assert report.findings == []
    assert [each.chips for each in report.models] == [(0,), (1,)]
    assert [each.steps for each in report.models] == [3 * 16 * 2 * CONCURRENT] * 2  # alone and together
    # Steps of both take the same time, so together they take half of one after another.
    assert report.overlap is not None
    assert report.overlap.mean == pytest.approx(0.5, abs=0.01)
    assert report.shared_ns > 0.9 * sum(report.joint_ns) * 0.9
    assert set(report.busy_ns) == {0, 1}
    assert board.asked[0] == "configure smollm2-135m on (0,)"
    assert board.asked[1] == "configure llama-3.2-1b on (1,)"


def test_combined_package_is_one_calbin_that_is_configured_once(both: Path) -> None:
    board = watched(ONE_CALBIN)
    configured: list[int] = []
    inner = board.board.configure

    def configure(*args: Any) -> Any:
        made = inner(*args)
        configured.append(board.device.clock.now_ns())
        return made

    board.board.configure = configure  # type: ignore[method-assign]
    report = run(board, both, concurrent=True)
    assert report.findings == []
    assert configured == [CONFIGURE_NS, CONFIGURE_NS]


def test_two_packages_of_their_own_are_two_calbins_and_the_second_is_refused(single: Path) -> None:
    board = SimBoard(ONE_CALBIN)
    package = open_models(single)[0]
    assert board.configure(package, LoadOptions((0,)), "one", 1)[0] == 0
    for name in ("two", "one"):
        assert board.configure(package, LoadOptions((1,)), name, 1) == (7, None)


def test_shared_calbin_stays_until_the_last_of_its_sessions_is_closed(both: Path) -> None:
    board, (first, second) = SimBoard(ONE_CALBIN), open_models(both)
    _, one = board.configure(first, LoadOptions((0,)), "one", 1)
    _, two = board.configure(second, LoadOptions((1,)), "two", 1)
    assert one is not None
    assert two is not None
    began = board.device.clock.now_ns()
    assert one.close() == 0
    code, again = board.configure(first, LoadOptions((0,)), "again", 2)
    assert code == 0
    assert board.device.clock.now_ns() == began  # B held the calbin all along
    assert two.close() == 0
    assert again is not None
    assert again.close() == 0
    assert board.configure(first, LoadOptions((0,)), "anew", 3)[0] == 0
    assert board.device.clock.now_ns() == began + CONFIGURE_NS


def test_models_of_two_combined_packages_share_no_calbin(both: Path, single: Path, tmp_path: Path) -> None:
    combine(single, single, tmp_path / "twins", CombineOptions(alias_b="twin"), SilentProgress())
    board, (first, _), (_, twin) = SimBoard(ONE_CALBIN), open_models(both), open_models(tmp_path / "twins")
    assert board.configure(first, LoadOptions((0,)), "one", 1)[0] == 0
    assert board.configure(twin, LoadOptions((1,)), "two", 1) == (7, None)


def test_models_of_a_combined_package_stay_on_their_own_chips(both: Path) -> None:
    board, (first, second) = SimBoard(LANES), open_models(both)
    assert board.configure(first, LoadOptions((1,)), "one", 1) == (5, None)
    assert board.configure(second, LoadOptions((0,)), "two", 1) == (5, None)


# --- before anything is configured --------------------------------------------------------------------------------


def changed(tree: PackageTree, at: int, **what: Any) -> PackageTree:
    models = list(tree.manifest.models)
    models[at] = msgspec.structs.replace(models[at], **what)
    return replace(tree, manifest=msgspec.structs.replace(tree.manifest, models=tuple(models)))


def test_good_targets_give_no_complaint(both: Path, single: Path) -> None:
    assert check_targets(read_tree(both), 2) == []
    assert check_targets(read_tree(single), 1) == []


def test_targets_beyond_the_board_are_told(both: Path) -> None:
    assert check_targets(read_tree(both), 1) == ["llama-3.2-1b is on chips (1,), the board has 1"]


def test_graph_on_another_chip_than_its_model_is_told(both: Path) -> None:
    tree = read_tree(both)
    graphs = tree.manifest.models[1].graphs
    wrong = (msgspec.structs.replace(graphs[0], chip_mask=3), *graphs[1:])
    told = check_targets(changed(tree, 1, graphs=wrong), 2)
    assert told == ["graph llama-3.2-1b.prefill_b1 is on chips (0, 1), its model on (1,)"]


def test_section_on_another_chip_than_its_model_is_told(both: Path) -> None:
    tree = read_tree(both)
    sections = tuple(msgspec.structs.replace(each, chip_mask=1) for each in tree.memory.sections)
    told = check_targets(replace(tree, memory=msgspec.structs.replace(tree.memory, sections=sections)), 2)
    assert "section llama-3.2-1b.kv is on chips (0,), its model on (1,)" in told


def test_models_on_one_chip_are_told(both: Path) -> None:
    tree = read_tree(both)
    graphs = tuple(msgspec.structs.replace(graph, chip_mask=1) for graph in tree.manifest.models[1].graphs)
    assert "smollm2-135m and llama-3.2-1b are both on chips (0,)" in check_targets(
        changed(tree, 1, chip_mask=1, graphs=graphs), 2
    )


def test_name_that_is_there_twice_is_told(both: Path) -> None:
    told = check_targets(changed(read_tree(both), 1, name="smollm2-135m"), 2)
    assert "the graph smollm2-135m.prefill_b1 is there 2 times" in told


def test_model_that_is_not_pinned_or_cannot_decode_is_told(both: Path) -> None:
    tree = read_tree(both)
    told = check_targets(changed(tree, 0, pinned=False, graphs=tree.manifest.models[0].graphs[:1]), 2)
    assert "smollm2-135m of several models is not pinned to its chips" in told
    assert "smollm2-135m has no graph that can decode" in told


def test_package_with_wrong_targets_is_never_configured(both: Path) -> None:
    board = watched(replace(LANES, chips=1, session_chips=(1,), calbins_per_board=1))
    report = run(board, both)
    assert found(report) == ["targets"]
    assert (report.configurations, board.asked) == (0, [])


# --- what it finds ------------------------------------------------------------------------------------------------


def test_wrong_output_is_found_with_its_step_and_the_rest_is_run(single: Path) -> None:
    golden = open_models(single)[0].goldens[1]
    other = replace(golden, output_ids=(*golden.output_ids[:-1], golden.output_ids[-1] ^ 1))
    report = run(watched(), single, goldens=(other,))
    assert found(report) == ["golden"]
    assert (
        f"step 15: token {golden.output_ids[-1]} where {other.output_ids[-1]} led by 0.125" in report.findings[0].detail
    )
    assert report.models[0].steps == 16


def test_wrong_output_within_the_tolerance_is_no_finding(single: Path) -> None:
    golden = open_models(single)[0].goldens[1]
    other = replace(golden, output_ids=(*golden.output_ids[:-1], golden.output_ids[-1] ^ 1))
    assert found(run(watched(), single, goldens=(other,), golden_tolerance=0.5)) == []


@pytest.mark.parametrize(
    ("point", "checks"),
    [
        (FaultPoint.LOGITS_NAN, ["golden"]),
        (FaultPoint.STATUS_CCU_EXCEPTION, ["stopped"]),
        (FaultPoint.SUBMIT_BUSY, ["stopped"]),
        (FaultPoint.MAP_FAILS, ["stopped"]),
        (FaultPoint.KV_APPLY_FAILS, ["stopped"]),
        (FaultPoint.CONFIGURE_FAILS, ["stopped"]),
        (FaultPoint.COMPLETION_MISNAMED, ["stopped"]),
        (FaultPoint.COUNTERS_WRONG, ["end"]),
        (FaultPoint.RESET_FAILS, ["end"]),
    ],
    ids=lambda value: value.name if isinstance(value, FaultPoint) else "",
)
def test_fault_of_the_board_is_found_and_the_board_is_given_back(
    single: Path, point: FaultPoint, checks: list[str]
) -> None:
    board = watched(faults=FaultPlan([Fault(point)]))
    report = run(board, single)
    assert found(report) == checks
    assert "reset configuration None" in board.asked or point is FaultPoint.CONFIGURE_FAILS
    assert board.counters().left == 0


def test_output_that_is_not_finite_is_told_as_such(single: Path) -> None:
    report = run(watched(faults=FaultPlan([Fault(FaultPoint.LOGITS_NAN)])), single)
    assert report.findings[0].detail == "smollm2-135m, golden 0, step 0: logits are not finite"


def test_second_model_that_cannot_be_configured_gives_the_first_one_back(both: Path) -> None:
    board = watched(faults=FaultPlan([Fault(FaultPoint.CONFIGURE_FAILS, at_visit=2)]))
    assert found(run(board, both)) == ["stopped"]
    assert [board.telemetry(chip).memory_used for chip in (0, 1)] == [0, 0]


def test_work_on_another_chip_is_found_in_the_trace(both: Path) -> None:
    board = watched()
    board.change = lambda spans: tuple(replace(span, chip=0) for span in spans)
    report = run(board, both)
    assert found(report) == ["trace"]
    assert report.findings[0].detail == "llama-3.2-1b worked on chip 0, and is compiled for (1,)"


def test_jobs_the_trace_does_not_show_are_found(single: Path) -> None:
    board = watched()
    board.change = lambda spans: tuple(span for span in spans if span.job != 3)
    assert "1 of 48 jobs of smollm2-135m left no compute" in run(board, single).findings[0].detail


def test_traffic_between_chips_of_a_model_of_one_chip_is_found(single: Path) -> None:
    board = watched()
    board.change = lambda spans: (*spans, replace(spans[0], phase="d2d"))
    assert "moved data between chips" in run(board, single).findings[0].detail


def test_chips_that_take_turns_show_no_overlap(both: Path) -> None:
    report = run(watched(replace(LANES, chips_overlap=False, banks_overlap=False)), both, concurrent=True)
    assert found(report) == ["overlap"]
    assert report.shared_ns == 0


def test_host_buffers_that_share_memory_are_found(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = np.zeros(4)
    monkeypatch.setattr(GoldenRun, "arrays", lambda self: [memory])
    assert found(run(watched(), both)) == ["buffers"]


# --- arithmetic ---------------------------------------------------------------------------------------------------


def test_overlap_ratio_is_the_specifications_with_students_interval() -> None:
    ratio = overlap_ratio([100, 100, 100], [60, 50, 70])  # 0.4, 0.5, 0.3
    assert ratio.mean == pytest.approx(0.4)
    assert ratio.low == pytest.approx(0.4 - 4.303 * 0.1 / 3**0.5)
    assert ratio.is_proven
    assert not overlap_ratio([100, 100], [40, 90]).is_proven  # 0.6 and 0.1: two runs this far apart prove nothing
    assert not overlap_ratio([100], [100]).is_proven


def test_shared_time_counts_what_two_sets_compute_together_once() -> None:
    spans = [
        TraceSpan(0, 1, "compute", 0, 10, core=0),
        TraceSpan(0, 1, "compute", 0, 10, core=1),  # a second core adds nothing
        TraceSpan(1, 2, "compute", 4, 8),
        TraceSpan(1, 3, "h2d", 8, 10),
        TraceSpan(1, 9, "compute", 0, 10),  # nobody's
    ]
    assert shared_ns(spans, [{1}, {2, 3}]) == 4
    assert shared_ns(spans, [{1}, {3}]) == 0


# --- the command --------------------------------------------------------------------------------------------------


def command(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["run", *args])
    return result.exit_code, result.stdout, result.stderr


def test_command_runs_a_combined_package_on_one_calbin_and_writes_its_report(both: Path, tmp_path: Path) -> None:
    tree = yaml.safe_load((Path(figures.__file__).parent / "profiles" / "assumed-lanes.yaml").read_text("utf-8"))
    tree["name"] = "one-calbin"
    tree["board"]["calbins_per_board"] = {"value": 1, "assumed": "as the specification's board"}
    (tmp_path / "board.yaml").write_text(yaml.safe_dump(tree), "utf-8")
    out = tmp_path / "reports" / "run.json"
    code, said, _ = command(
        str(both), "--golden", "--concurrent", "--rounds", "2", "--json", str(out),
        "--board-profile", str(tmp_path / "board.yaml"),
    )  # fmt: skip
    assert code == 0, said
    assert "overlap ratio 0.500" in said
    report = json.loads(out.read_text("utf-8"))
    assert report["schema"] == "calserve-run/v1"
    assert (report["simulated"], report["findings"], len(report["joint_ns"])) == (True, [], 2)
    assert [model["chips"] for model in report["models"]] == [[0], [1]]


def test_command_exits_3_when_something_is_found(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check_targets", lambda tree, chips: ["nothing is right"])
    code, said, _ = command(str(single), "--golden")
    assert code == 3
    assert "targets: nothing is right" in said


@pytest.mark.parametrize(
    ("args", "words"),
    [(("--golden", "--concurrent"), "nothing to run beside it"), ((), "takes --golden")],
)
def test_command_refuses_in_one_sentence(single: Path, args: tuple[str, ...], words: str) -> None:
    code, _, err = command(str(single), *args)
    assert code == 1
    assert words in err


# --- the embedded board -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_embedded_board_runs_two_models_on_two_chips(tiny_package: Path, tmp_path: Path) -> None:
    """Outputs, buffers and trace; how much time it saves depends on who else uses the cores."""
    combine(tiny_package, tiny_package, tmp_path / "both", CombineOptions(alias_b="other"), SilentProgress())
    out = tmp_path / "run.json"
    code, said, err = command(str(tmp_path / "both"), "--golden", "--concurrent", "--rounds", "2", "--json", str(out))
    assert code in (0, 3), (said, err)
    report = json.loads(out.read_text("utf-8"))
    assert {finding["check"] for finding in report["findings"]} <= {"overlap"}, report["findings"]
    assert all(model["steps"] == 2 * 2 * sum(len(g.output_ids) for g in open_models(tiny_package)[0].goldens)
               for model in report["models"])  # fmt: skip
    assert set(report["busy_ns"]) == {"0", "1"}
    assert report["shared_ns"] > 0
