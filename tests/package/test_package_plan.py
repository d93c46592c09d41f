"""The budget of a model on a board's chips: the specification's own figures, the lines, and what decides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from package_rig import write_package
from typer.testing import CliRunner

from calserve.cli import main  # noqa: F401  (registers every command)
from calserve.cli.app import app
from calserve.package import PackageError
from calserve.package.budget import Shape, kv_bytes, weight_bytes, workspace_peaks
from calserve.package.geometry import Geometry, load_geometry, package_geometry
from calserve.package.plan import ChipMemory, Measured, guard_bytes, line_bytes, plan_model
from calserve.package.reader import read_tree

GIB = 1 << 30
QWEN3 = load_geometry("qwen3-30b-a3b")
LLAMA = load_geometry("llama-3.2-1b")


def chips(count: int, gib: float = 16) -> tuple[ChipMemory, ...]:
    return tuple(ChipMemory(chip, int(gib * GIB), "by the test") for chip in range(count))


def used(plan: object, chip: int = 0) -> dict[str, int]:
    return {use.name: use.byte_count for use in plan.chips[chip].uses}  # type: ignore[attr-defined]


def gib(size: int) -> str:
    return f"{size / GIB:.3f}"


# --- the specification's figures (seed 004, sections 3 and 8) -----------------------------------------------------


def test_kv_of_the_specifications_model_is_3_750_gib() -> None:
    assert kv_bytes(QWEN3, 40_960, 1) == 4_026_531_840
    assert gib(4_026_531_840) == "3.750"


def test_plan_of_the_specifications_model_has_its_parameters_and_reservation() -> None:
    plan = plan_model(QWEN3, Shape(), chips(2))
    assert [gib(used(plan, chip)["weights"]) for chip in (0, 1)] == ["8.759", "8.179"]
    assert gib(sum(used(plan, chip)["weights"] for chip in (0, 1))) == "16.938"
    assert [gib(used(plan, chip)["kv"]) for chip in (0, 1)] == ["1.875", "1.875"]
    assert [chip.required_bytes for chip in plan.chips] == [15_112_916_172] * 2  # 14.075 GiB
    assert gib(plan.required_bytes) == "28.150"


def test_guard_is_15_percent_and_never_below_1_gib() -> None:
    assert guard_bytes(16 * GIB) == 2_576_980_377  # 2.4 GiB
    assert guard_bytes(6 * GIB) == GIB  # 15 % would be 0.9 GiB
    assert guard_bytes(7 * GIB) == 1_127_428_915  # 1.05 GiB


def test_lines_are_75_and_80_percent() -> None:
    assert line_bytes(16 * GIB) == (12 * GIB, 13_743_895_347)


def test_plan_of_the_specifications_model_on_its_board_is_over_the_line_and_says_by_what() -> None:
    plan = plan_model(QWEN3, Shape(), chips(2))
    assert plan.verdict == "over_line"
    assert plan.chips[0].reason == "needs 14.075 GiB of 16.000 GiB, above the line of 80 % (12.800 GiB)"


def test_plan_of_the_specifications_model_on_one_chip_has_no_room() -> None:
    plan = plan_model(QWEN3, Shape(), chips(1))
    assert plan.verdict == "no_room"
    assert "weights alone 16.938 GiB" in plan.chips[0].reason
    assert set(plan.context_by_lanes.values()) == {0}
    assert plan.max_lanes == 0


# --- the sum and its parts ----------------------------------------------------------------------------------------


def test_plan_of_a_small_model_adds_every_use_up() -> None:
    plan = plan_model(LLAMA, Shape(context=4096, lanes=1), chips(1))
    assert used(plan) == {
        "weights": 1_255_124_000,  # 1,235,814,400 parameters x 130 / 128
        "kv": 134_217_728,  # 2 x 16 x 8 x 64 x 4096 x 2
        "workspace": 167_772_160,  # 4096 tokens x 2 bytes x (2 x 2048 + 2 x 8192)
        "code": 8_388_608,  # 16 layers x 2 graphs x 256 KiB
        "io": 545_792,  # 8 x 4096 + 4 x 128256
        "metadata": 4_194_304,
        "fragmentation": 2_621_408,  # up to multiples of 2 MiB: 1.07 of weights, 0.74 of io, each by itself
    }
    assert plan.chips[0].required_bytes == sum(used(plan).values())
    assert plan.verdict == "fits"


@pytest.mark.parametrize(("weights", "size"), [("int8", 130), ("int4", 66), ("fp16", 256)])
def test_weights_of_a_format_take_their_bytes_and_scales(weights: str, size: int) -> None:
    assert weight_bytes(LLAMA, weights) == -(-1_235_814_400 * size // 128)  # type: ignore[arg-type]


def test_weights_that_are_compiled_are_taken_as_they_are() -> None:
    assert weight_bytes(QWEN3, "int4") == 9_404_904_636 + 8_782_134_378


def test_two_chips_share_weights_kv_and_workspace_and_each_has_the_rest() -> None:
    one, two = plan_model(LLAMA, Shape(), chips(1)), plan_model(LLAMA, Shape(), chips(2))
    for name in ("weights", "kv", "workspace"):
        assert used(two)[name] == used(one)[name] // 2, name
    for name in ("code", "io", "metadata"):
        assert used(two)[name] == used(one)[name], name


def test_prefills_peak_decides_the_workspace_and_decodes_does_not() -> None:
    prefill, decode = workspace_peaks(LLAMA, 4096, 16)
    assert (prefill, decode) == (167_772_160, 655_360)
    assert used(plan_model(LLAMA, Shape(context=4096, lanes=16), chips(1)))["workspace"] == prefill


def test_prefills_peak_alone_can_take_the_room() -> None:
    """The same model with activations so wide that a decode fits easily and one whole prompt does not."""
    wide = replace(LLAMA, ffn_size=1 << 20)
    prefill, decode = workspace_peaks(wide, 4096, 1)
    plan = plan_model(wide, Shape(context=4096), chips(1))
    assert decode < GIB < 16 * GIB < prefill
    assert plan.verdict == "no_room"
    assert "workspace alone" in plan.chips[0].reason


# --- verdicts, each at its border ---------------------------------------------------------------------------------


def sized(required: int) -> Geometry:
    """A model that needs exactly `required` bytes on a chip: one reservation, known as a whole."""
    return package_like(required)


def package_like(required: int) -> Geometry:
    from calserve.package.geometry import Compiled

    kv = kv_bytes(LLAMA, 64, 1)
    weights = required - kv
    sections = MappingProxyType({"weights": weights, "kv": kv, "workspace": 0})
    compiled = Compiled(64, 1, (weights,), (required,), (sections,))
    sources = MappingProxyType({**LLAMA.sources, "compiled.weight_bytes": "x", "compiled.reserved_bytes": "x"})
    return replace(LLAMA, compiled=compiled, sources=sources)


@pytest.mark.parametrize(
    ("required", "verdict"),
    [
        (12 * GIB, "fits"),
        (12 * GIB + 1, "tight"),
        (13_743_895_347, "tight"),
        (13_743_895_348, "over_line"),
        (16 * GIB, "over_line"),
        (16 * GIB + 1, "no_room"),
    ],
)
def test_verdict_changes_at_75_80_and_100_percent(required: int, verdict: str) -> None:
    plan = plan_model(sized(required), Shape(), chips(1))
    assert plan.chips[0].required_bytes == required
    assert plan.verdict == verdict


def test_guard_of_1_gib_decides_on_a_small_chip() -> None:
    """Of 4 GiB, 80 % are 3.2 GiB, and 3.1 GiB leave no guard of 1 GiB."""
    plan = plan_model(sized(int(3.1 * GIB)), Shape(), chips(1, 4))
    assert plan.verdict == "over_line"
    assert "of a guard of 1.000 GiB" in plan.chips[0].reason


def test_worst_chip_decides_for_the_model() -> None:
    memory = (ChipMemory(0, 32 * GIB, "x"), ChipMemory(1, 8 * GIB, "x"))
    assert plan_model(QWEN3, Shape(), memory).verdict == "no_room"


# --- how much more ------------------------------------------------------------------------------------------------


def test_largest_context_and_lanes_are_the_last_within_the_line() -> None:
    plan = plan_model(LLAMA, Shape(context=4096, lanes=1), chips(1))
    for lanes, context in plan.context_by_lanes.items():
        if context == LLAMA.context:
            continue
        within = plan_model(LLAMA, Shape(context=context, lanes=lanes), chips(1))
        beyond = plan_model(LLAMA, Shape(context=context + 1, lanes=lanes), chips(1))
        assert (within.verdict, beyond.verdict) == ("tight", "over_line"), lanes
    more = plan_model(LLAMA, Shape(context=4096, lanes=plan.max_lanes + 1), chips(1))
    assert plan_model(LLAMA, Shape(context=4096, lanes=plan.max_lanes), chips(1)).verdict in ("fits", "tight")
    assert more.verdict == "over_line"


def test_largest_context_never_passes_what_the_model_was_trained_for() -> None:
    assert plan_model(LLAMA, Shape(), chips(1, 4096)).context_by_lanes[1] == 131_072


def test_context_beyond_the_training_is_refused() -> None:
    with pytest.raises(PackageError, match="131072 tokens"):
        plan_model(LLAMA, Shape(context=131_073), chips(1))


def test_kv_heads_that_chips_cannot_share_are_refused() -> None:
    with pytest.raises(PackageError, match="8 KV heads"):
        plan_model(LLAMA, Shape(), chips(3))


# --- packages, and what a load took -------------------------------------------------------------------------------


def measured(uses: dict[str, int]) -> Measured:
    return Measured("0" * 64, "board", uses, {0: 5}, {0: 7}, {0: 3}, {0: 0})


def test_package_is_planned_with_its_own_figures(tmp_path: Path) -> None:
    tree = read_tree(write_package(tmp_path / "toy"))
    plan = plan_model(package_geometry(tree, tree.manifest.models[0]), Shape(), chips(1))
    assert used(plan) == {
        "weights": 1000,
        "kv": 4 * 64 * 128,  # 4 lanes of 64 tokens; 2 x 2 layers x 1 head x 16 x 2 bytes each
        "workspace": None,
        "code": 0,
        "io": 2764,
        "metadata": 0,
        "fragmentation": (6 << 20) - 1000 - 32768 - 2764,
    }
    assert plan.unknown == ("workspace",)
    assert plan.verdict == "tight"
    assert "only a load can tell" in plan.chips[0].reason


def test_workspace_that_was_measured_is_used(tmp_path: Path) -> None:
    tree = read_tree(write_package(tmp_path / "toy"))
    load = measured({"workspace": 123_456})
    plan = plan_model(package_geometry(tree, tree.manifest.models[0]), Shape(), chips(1), load)
    assert used(plan)["workspace"] == 123_456
    assert plan.verdict == "fits"


def test_peak_of_a_load_is_its_rise_and_the_greater_of_what_followed() -> None:
    assert measured({}).peak_bytes == 12
    assert replace(measured({}), delta_bytes={0: None}).peak_bytes is None


# --- the command --------------------------------------------------------------------------------------------------


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *args])
    return result.exit_code, result.stdout, result.stderr


def test_command_prints_the_specifications_figures_and_exits_3() -> None:
    code, out, _ = run("qwen3-30b-a3b", "--board-profile", "calculet-2chip")
    assert code == 3
    for figure in ("8.759 GiB", "8.179 GiB", "1.875 GiB", "14.075 GiB", "28.150 GiB", "2.400 GiB", "over_line"):
        assert figure in out, figure


def test_command_refuses_the_specifications_model_on_one_chip() -> None:
    code, out, err = run("qwen3-30b-a3b", "--chips", "1")
    assert code == 1
    assert "qwen3-30b-a3b has no room on chip 0" in err
    assert "16.938 GiB" in out


def test_command_plans_two_models_on_a_chip_each() -> None:
    code, out, _ = run("llama-3.2-1b", "qwen2.5-1.5b", "--json")
    assert code == 0
    first, second = json.loads(out)
    assert [plan["chips"][0]["chip"] for plan in (first, second)] == [0, 1]
    assert all(plan["chips"][0]["dram_bytes"] == 16 * GIB for plan in (first, second))
    assert first["required_bytes"] == plan_model(LLAMA, Shape(), chips(1)).required_bytes


def test_command_refuses_a_model_of_two_chips_beside_another() -> None:
    code, _, err = run("qwen3-30b-a3b", "llama-3.2-1b")
    assert code == 1
    assert "compiled for 2 chips" in err


def test_command_says_where_the_memory_of_a_chip_is_stated() -> None:
    _, out, _ = run("llama-3.2-1b", "--json")
    assert json.loads(out)[0]["chips"][0]["dram_source"].startswith("board profile assumed-lanes: seed 004")
    _, out, _ = run("llama-3.2-1b", "--dram", "8", "--json")
    chip = json.loads(out)[0]["chips"][0]
    assert (chip["dram_bytes"], chip["dram_source"]) == (8 * GIB, "stated with --dram")


def test_command_takes_no_boards_word_for_its_capacity(tmp_path: Path) -> None:
    """The embedded board knows the machine's memory; that is no capacity of a chip."""
    code, _, err = run(str(write_package(tmp_path / "toy")))
    assert code == 1
    assert "--dram must state the memory" in err
    assert run(str(tmp_path / "toy"), "--dram", "4")[0] == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("llama-3.2-1b", "--measure"), "a geometry cannot be loaded"),
        (("llama-3.2-1b", "--record", "x.json"), "use them together"),
        (("llama-3.2-1b", "--weights", "int3"), "--weights is one of"),
        (("llama-3.2-1b", "--board", "tpu"), "There is no board"),
        (("llama-3.2-1b", "--chips", "4"), "the board has 2"),
        (("llama-4",), "There is no geometry"),
        (("llama-3.2-1b", "--board-profile", "none"), "There is no board profile"),
        (("llama-3.2-1b", "qwen3-1.7b", "smollm2-135m"), "takes one model, or two"),
    ],
)
def test_command_refuses_in_one_sentence(args: tuple[str, ...], words: str) -> None:
    code, _, err = run(*args)
    assert code == 1
    assert words in err
    assert err.count("\n") == 1
