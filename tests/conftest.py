"""Packages the tests share: made once, by the same calls a user makes, and kept between runs.

Models live in `$CALSERVE_MODELS`, by default `models/` of the repository. Nothing is fetched or packed when what lies
there opens as a package made with the tools installed now.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from hypothesis import settings

from calserve.package import PackageError, open_package, pull
from calserve.package.pack import PackOptions, pack
from calserve.progress import PlainProgress, SilentProgress
from tiny_model import write_tiny_gguf

ROOT = Path(__file__).parent.parent
# `--hypothesis-profile fuzz` is what `make fuzz` runs: 40 times the usual examples, each machine's own number scaled.
settings.register_profile("fuzz", max_examples=int(os.environ.get("CALSERVE_FUZZ_EXAMPLES", "4000")), deadline=None)


@pytest.fixture(scope="session")
def models_dir() -> Path:
    path = Path(os.environ.get("CALSERVE_MODELS", ROOT / "models"))
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="session")
def int8_package(models_dir: Path) -> Path:
    """SmolLM2-135M-Instruct, int8 fast: the default that `make serve` serves."""
    return made_once(models_dir, "smollm2-135m", PackOptions(alias="smollm2-135m"))


@pytest.fixture(scope="session")
def exact_package(models_dir: Path) -> Path:
    """SmolLM2-135M-Instruct, fp16 exact: its texts are the reference's."""
    options = PackOptions(weights="fp16", numerics="exact", alias="smollm2-135m")
    return made_once(models_dir, "smollm2-135m-exact", options)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_package(tiny_gguf: Path) -> Path:
    """A random two-layer Llama, fp16 exact, context 512, 16 lanes; see `tiny_model`."""
    target = tiny_gguf.parent / "tiny"
    options = PackOptions(context=512, weights="fp16", numerics="exact", alias="tiny")
    pack(tiny_gguf, target, options, SilentProgress())
    return target


def made_once(models: Path, name: str, options: PackOptions) -> Path:
    """`models/name`, packed from the pulled model unless a current one is there. Safe against a parallel run."""
    target = models / name
    with (models / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_current(target):
            progress = PlainProgress(sys.stderr)
            source = pull("smollm2-135m", models / "sources", progress)
            pack(source, target, replace(options, force=True), progress)
    return target


def _is_current(target: Path) -> bool:
    try:
        package = open_package(target)
        tools = json.loads(package.files["provenance"].read_bytes())["tools"]
        return all(version(name) == number for name, number in tools.items() if name != "calserve")
    except (PackageError, PackageNotFoundError):
        return False
