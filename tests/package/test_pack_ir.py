"""OpenVINO IR directories as sources, made here from the tiny GGUF: what comes out, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hf_rig import SHAPE, edit_json, write_texts

from calserve.package import PackageError, open_package
from calserve.package.pack import PackOptions, pack
from calserve.package.pack.convert import convert_gguf
from calserve.package.pack.graph import check_standard, matrix_types, read_graph
from calserve.package.pack.ir_source import open_ir
from calserve.progress import SilentProgress

OPTIONS = PackOptions(context=512, weights="given", numerics="exact")
GRAPH, WEIGHTS = "openvino_model.xml", "openvino_model.bin"


@pytest.fixture(scope="module")
def made(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converter's graph of the tiny model, float16, with the small files a hub adds."""
    root = tmp_path_factory.mktemp("ir") / "tiny-ir"
    root.mkdir()
    shutil.copy(tiny_gguf, root / "tiny.gguf")
    convert_gguf(root / "tiny.gguf")
    for path in list(root.iterdir()):
        if path.name not in (GRAPH, WEIGHTS):
            path.unlink()
    write_texts(root)
    config = {**SHAPE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (root / "config.json").write_text(json.dumps(config))
    return root


@pytest.fixture
def ir(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "ir"))


def save_as(root: Path, change: str) -> None:
    """Write the graph of `root` again, changed."""
    import openvino as ov
    from openvino import opset13 as ops

    graph = ov.Core().read_model(root / GRAPH)
    if change == "more inputs":
        extra = ops.parameter([-1], np.int64, name="extra")
        extra.output(0).set_names({"extra"})
        graph.add_parameters([extra])
        graph.add_results([ops.result(extra)])
    elif change == "other output":
        for output in graph.outputs:
            output.get_tensor().set_names({"scores"})
    ov.save_model(graph, root / "new.xml", compress_to_fp16=False)
    del graph
    (root / "new.xml").replace(root / GRAPH)
    (root / "new.bin").replace(root / WEIGHTS)


def test_ir_as_given_packs_to_the_bits_of_its_gguf(made: Path, tiny_package: Path, tmp_path: Path) -> None:
    """The same graph by another way in: the GGUF's package, fp16 exact, is made outside this road."""
    report = pack(made, tmp_path / "p", OPTIONS, SilentProgress())
    package = open_package(tmp_path / "p")
    assert (package.model, package.weights, package.numerics) == ("tiny-ir", "given", "exact")
    assert report.agreement.top1 == 1.0
    assert (tmp_path / "p/graphs/step.bin").read_bytes() == (tiny_package / "graphs/step.bin").read_bytes()
    assert (tmp_path / "p/graphs/step.xml").read_bytes() == (tiny_package / "graphs/step.xml").read_bytes()
    source = json.loads((tmp_path / "p/build-provenance.json").read_bytes())["source"]
    assert (source["kind"], source["name"]) == ("openvino", "tiny-ir")
    assert sorted(source["files"]) == ["chat_template.jinja", "config.json", WEIGHTS, GRAPH, "tokenizer.json"]


@pytest.mark.slow
def test_ir_of_compressed_weights_is_packed_as_given_and_only_so(made: Path, ir: Path, tmp_path: Path) -> None:
    pack(made, tmp_path / "int8", replace(OPTIONS, weights="int8"), SilentProgress())
    import nncf
    import openvino as ov

    graph = nncf.compress_weights(ov.Core().read_model(made / GRAPH), mode=nncf.CompressWeightsMode.INT8_SYM)
    ov.save_model(graph, ir / GRAPH, compress_to_fp16=False)
    pack(ir, tmp_path / "given", replace(OPTIONS, numerics="fast"), SilentProgress())
    package = open_package(tmp_path / "given")
    assert (tmp_path / "given/graphs/step.bin").stat().st_size == (tmp_path / "int8/graphs/step.bin").stat().st_size
    assert (package.weights, package.settings["INFERENCE_PRECISION_HINT"]) == ("given", "f32")  # as int8 fast has it
    for weights in ("int8", "int4", "fp16"):
        with pytest.raises(PackageError, match="only --weights given packs them"):
            pack(ir, tmp_path / "no", replace(OPTIONS, weights=weights), SilentProgress())


@pytest.mark.slow
def test_ir_to_int4_holds_weights_of_four_bits(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model that is nervous by design does not survive four bits; the bound is not what is tried here."""
    bounds, loose = (getattr(sys.modules["calserve.package.pack.agreement"], name) for name in ("BOUNDS", "Bounds"))
    monkeypatch.setitem(bounds, ("int4", "exact"), loose(0.0, 0.0, np.inf, np.inf, -1.0, -1.0))
    pack(made, tmp_path / "p", replace(OPTIONS, weights="int4"), SilentProgress())
    assert "u4" in matrix_types(read_graph_of(tmp_path / "p/graphs/step.xml"))
    record = json.loads((tmp_path / "p/build-provenance.json").read_bytes())
    assert record["quantization"]["mode"] == "INT4_ASYM"


def read_graph_of(path: Path) -> object:
    import openvino as ov

    core = ov.Core()
    core.get_property("CPU", "FULL_DEVICE_NAME")
    return core.read_model(path)


# What is refused.


def refusal(root: Path, target: Path, options: PackOptions = OPTIONS) -> PackageError:
    with pytest.raises(PackageError) as caught:
        pack(root, target, options, SilentProgress())
    assert not target.exists()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS])
def test_ir_missing_file_is_named(ir: Path, tmp_path: Path, name: str) -> None:
    (ir / name).unlink()
    assert name in str(refusal(ir, tmp_path / "p"))


def test_ir_of_another_family_is_not_supported(ir: Path, tmp_path: Path) -> None:
    edit_json(ir / "config.json", model_type="phi3")
    assert str(refusal(ir, tmp_path / "p")).startswith("not supported: ")


def test_ir_linked_graph_is_refused(ir: Path, made: Path, tmp_path: Path) -> None:
    (ir / GRAPH).unlink()
    (ir / GRAPH).symlink_to(made / GRAPH)
    assert refusal(ir, tmp_path / "p").fault.rule == "source_link"


def test_ir_held_against_transformers_is_refused(ir: Path, tmp_path: Path) -> None:
    assert refusal(ir, tmp_path / "p", replace(OPTIONS, reference="transformers")).fault.rule == "reference"


@pytest.mark.parametrize(
    ("change", "words"), [("more inputs", "is no stateful decoder"), ("other output", "no output named logits")]
)
def test_ir_of_another_form_is_not_supported(ir: Path, tmp_path: Path, change: str, words: str) -> None:
    save_as(ir, change)
    error = refusal(ir, tmp_path / "p")
    assert error.fault.rule == "not_supported"
    assert words in str(error)


def test_ir_of_another_vocabulary_is_refused(ir: Path, tmp_path: Path) -> None:
    edit_json(ir / "config.json", vocab_size=321)
    assert refusal(ir, tmp_path / "p").fault.rule == "vocabulary"


def test_ir_truncated_anywhere_is_a_sentence(ir: Path, tmp_path: Path) -> None:
    for name in (GRAPH, WEIGHTS):
        whole = (ir / name).read_bytes()
        for share in (0.0, 0.5, 0.99):
            (ir / name).write_bytes(whole[: int(len(whole) * share)])
            assert refusal(ir, tmp_path / "p").fault.rule == "graph", (name, share)
        (ir / name).write_bytes(whole)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('type="Parameter" version="opset1"', 'type="Parameter" version="extension"'),
        ('type="MatMul" version="opset1"', 'type="Mine" version="custom"'),
        ('offset="0"', 'offset="99999999999"'),
        ('size="', 'size="9'),
    ],
)
def test_ir_with_operations_or_places_of_its_own_is_refused(ir: Path, tmp_path: Path, old: str, new: str) -> None:
    text = (ir / GRAPH).read_text()
    assert old in text
    (ir / GRAPH).write_text(text.replace(old, new))
    assert refusal(ir, tmp_path / "p").fault.rule in ("graph", "not_supported")


def test_graph_with_an_operation_that_is_not_standard_is_not_supported(made: Path, tiny_package: Path) -> None:
    """The paged graph itself holds one, which OpenVINO reads once its plug-in is loaded."""
    path = tiny_package / "graphs/step.xml"
    with pytest.raises(PackageError, match=r"^not supported: .* holds PagedAttentionExtension, which is no standard"):
        check_standard(read_graph_of(path), path)
    read_graph(made / GRAPH)


def test_ir_graph_beyond_reason_is_refused_unread(ir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (ir / GRAPH).open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(PackageError) as caught:
        open_ir(ir, "")
    assert caught.value.fault.rule == "source_size"
