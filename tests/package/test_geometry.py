"""Geometries that ship, and what a file may say: every figure once, with where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from calserve.package import PackageError
from calserve.package import geometry as module
from calserve.package.geometry import load_geometry, shipped_geometries

SHIPPED = Path(module.__file__).parent / "geometries"
GIB = 1 << 30
# Parameters as their publishers count them (model cards and safetensors headers), the tied embedding once.
PUBLISHED = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-30b-a3b": 30_532_122_624,
    "smollm2-135m": 134_515_008,
    "smollm2-1.7b": 1_711_376_384,
}


def tree_of(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text("utf-8"))
    return tree


def refusal_of(folder: Path, tree: object) -> str:
    path = folder / "model.yaml"
    path.write_text(yaml.safe_dump(tree), "utf-8")
    with pytest.raises(PackageError) as error:
        load_geometry(path)
    sentence = str(error.value)
    assert str(path) in sentence
    assert sentence.endswith(".")
    return sentence


def test_shipped_geometries_have_the_published_numbers_of_parameters() -> None:
    assert {name: load_geometry(name).parameters for name in shipped_geometries()} == PUBLISHED


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_shipped_geometry_is_read_under_its_own_name_with_a_source_for_every_figure(name: str) -> None:
    geometry = load_geometry(name)
    assert geometry.name == name
    stated = {*tree_of(name)["figures"], *(f"compiled.{key}" for key in tree_of(name).get("compiled", {}))}
    assert set(geometry.sources) == stated
    assert all(len(source) > 3 for source in geometry.sources.values())


def test_qwen3_of_the_specification_has_the_figures_of_the_specification() -> None:
    geometry = load_geometry("qwen3-30b-a3b")
    compiled = geometry.compiled
    assert (geometry.n_layers, geometry.n_kv_heads, geometry.head_dim, geometry.context) == (48, 4, 128, 40_960)
    assert geometry.kv_dtype == "bfloat16"
    assert [f"{each / GIB:.3f}" for each in compiled.weight_bytes] == ["8.759", "8.179"]
    assert [f"{each / GIB:.3f}" for each in compiled.reserved_bytes] == ["14.075", "14.075"]


def test_geometry_from_a_file_is_the_one_that_was_written(tmp_path: Path) -> None:
    tree = tree_of("llama-3.2-1b")
    tree["name"] = "mine"
    tree["figures"]["n_layers"] = {"value": 7, "assumed": "a shorter one"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree), "utf-8")
    geometry = load_geometry(tmp_path / "mine.yaml")
    assert (geometry.name, geometry.n_layers) == ("mine", 7)
    assert geometry.sources["n_layers"] == "assumed: a shorter one"


def test_geometry_without_a_source_is_refused(tmp_path: Path) -> None:
    tree = tree_of("llama-3.2-1b")
    tree["figures"]["n_layers"] = {"value": 16}
    assert "figures.n_layers needs one of source" in refusal_of(tmp_path, tree)


def test_geometry_with_a_key_nobody_knows_is_refused(tmp_path: Path) -> None:
    assert "layers" in refusal_of(tmp_path, tree_of("llama-3.2-1b") | {"layers": 16})


def test_geometry_of_another_schema_is_refused(tmp_path: Path) -> None:
    assert "calserve-geometry/v1" in refusal_of(tmp_path, {"schema": "calserve-geometry/v2"})


def test_geometry_whose_reservation_holds_no_weights_is_refused(tmp_path: Path) -> None:
    tree = tree_of("qwen3-30b-a3b")
    tree["compiled"]["reserved_bytes"]["value"] = [1, 1]
    assert "compiled.reserved_bytes" in refusal_of(tmp_path, tree)


def test_geometry_whose_chips_do_not_agree_is_refused(tmp_path: Path) -> None:
    tree = tree_of("qwen3-30b-a3b")
    tree["compiled"]["reserved_bytes"]["value"] = [15_112_916_172]
    assert "same chips" in refusal_of(tmp_path, tree)


def test_geometry_compiled_beyond_its_training_is_refused(tmp_path: Path) -> None:
    tree = tree_of("qwen3-30b-a3b")
    tree["compiled"]["context"]["value"] = 40_961
    assert "compiled.context" in refusal_of(tmp_path, tree)


def test_geometry_with_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(PackageError, match=r"llama-3\.2-1b"):
        load_geometry("llama-4")
