"""Every family, small and random, from transformers through optimum-intel: each is exported once, held against
transformers, and its graph packed in every form; a pack from the Hugging Face directory itself closes the circle."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hf_rig import FAMILIES, write_model

from calserve.package import open_package
from calserve.package.pack import PackOptions, agreement, pack
from calserve.package.pack.hf_source import open_huggingface
from calserve.package.pack.loop import PagedLoop
from calserve.package.pack.paged import Geometry
from calserve.package.pack.torch_run import TorchJob, run_torch
from calserve.progress import SilentProgress

pytestmark = pytest.mark.slow

OPTIONS = PackOptions(context=512, weights="given", numerics="exact")
GEOMETRY = Geometry(n_layers=2, n_kv_heads=2, head_dim=32)
IDS = [(7 * i) % 300 for i in range(200)]


class Exported(NamedTuple):
    """A family's directory, its IR, and transformers' float32 logits of IDS."""

    model: Path
    ir: Path
    logits: np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module", params=list(FAMILIES))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    family = request.param
    root = tmp_path_factory.mktemp(family)
    model = write_model(root / family, family, calm=True)
    job = TorchJob(
        model=str(model),
        architecture=FAMILIES[family][1],
        ids=IDS,
        logits=str(root / "logits.npy"),
        export=str(root / "ir"),
    )
    run_torch(job, root, SilentProgress())
    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        shutil.copy(model / name, root / "ir" / name)
    return Exported(model, root / "ir", np.load(root / "logits.npy", allow_pickle=False))


def logits_of(package: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Of IDS, in pieces of 33, by the packed graph."""
    opened = open_package(package)
    loop = PagedLoop(opened.files["graph:step"], GEOMETRY, dict(opened.settings), opened.context)
    pieces = [IDS[at : at + 33] for at in range(0, len(IDS), 33)]
    return np.concatenate([loop.step(ids, 33 * i, range(len(ids))) for i, ids in enumerate(pieces)])


@pytest.mark.parametrize(
    ("weights", "numerics", "top1", "cosine"),
    [("given", "exact", 0.99, 0.9999), ("int8", "fast", 0.95, 0.998), ("int4", "fast", 0.8, 0.95)],
)
def test_family_packed_agrees_with_transformers(
    exported: Exported, tmp_path: Path, weights: str, numerics: str, top1: float, cosine: float
) -> None:
    pack(exported.ir, tmp_path / "p", replace(OPTIONS, weights=weights, numerics=numerics), SilentProgress())
    package = open_package(tmp_path / "p")
    assert dict(package.kv) == {"n_layers": 2, "n_kv_heads": 2, "head_dim": 32, "unit_tokens": 32, "dtype": "float16"}
    figures = agreement(logits_of(tmp_path / "p"), exported.logits)
    assert figures.top1 >= top1
    assert figures.cosine_mean >= cosine


def test_family_from_its_own_directory_packs_to_the_same_graph(exported: Exported, tmp_path: Path) -> None:
    report = pack(exported.model, tmp_path / "hf", OPTIONS, SilentProgress())
    pack(exported.ir, tmp_path / "ir", OPTIONS, SilentProgress())
    assert report.agreement.top1 >= 0.99
    for name in ("graphs/step.bin", "graphs/step.xml", "goldens.json", "tokenizer.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (tmp_path / "ir" / name).read_bytes(), name
    record = json.loads((tmp_path / "hf/build-provenance.json").read_bytes())
    assert record["source"]["kind"] == "huggingface"
    assert record["source"]["architecture"] == open_huggingface(exported.model, "").architecture
