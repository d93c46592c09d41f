"""What is needed of OpenVINO's private transformation and plug-in: the contract test of the pinned version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calserve.package import open_package
from calserve.package.pack.loop import PagedLoop
from calserve.package.pack.paged import CACHE_PREFIXES, Geometry, read_paged

GEOMETRY = Geometry(n_layers=2, n_kv_heads=2, head_dim=32)
IDS = [(7 * i) % 300 for i in range(100)]


@pytest.fixture(scope="module")
def loop(tiny_package: Path) -> PagedLoop:
    package = open_package(tiny_package)
    return PagedLoop(package.files["graph:step"], GEOMETRY, dict(package.settings), package.context)


def test_packed_graph_has_exactly_the_declared_tensors(tiny_package: Path) -> None:
    import openvino as ov

    package = open_package(tiny_package)
    model = read_paged(ov.Core(), package.files["graph:step"], GEOMETRY)
    names = {port.get_any_name() for port in model.inputs}
    caches = {f"{prefix}{i}" for prefix in CACHE_PREFIXES for i in range(2)}
    assert names == {*package.graphs[0].inputs, *caches}
    assert [port.get_any_name() for port in model.outputs] == ["logits"]
    for port in model.inputs:
        if port.get_any_name() in caches:
            assert port.get_element_type() == ov.Type.dynamic  # else float32 compiles write KV to a copy
        else:
            contract = package.graphs[0].inputs[port.get_any_name()]
            assert port.get_element_type() == ov.Type(np.dtype(contract.dtype))
            assert len(port.get_partial_shape()) == len(contract.shape)


@pytest.mark.parametrize("chunk", [2, 3, 16, 31, 32, 33, 64, 97])
def test_packed_graph_in_chunks_gives_the_same_bits(loop: PagedLoop, chunk: int) -> None:
    """Chunks of at least two tokens, as `min_chunk_tokens` of an exact package says."""
    whole = loop.step(IDS, 0, range(len(IDS)))
    at, parts = 0, []
    while at < len(IDS):
        left = len(IDS) - at
        ids = IDS[at:] if left < chunk + 2 else IDS[at : at + chunk]
        parts.append(loop.step(ids, at, range(len(ids))))
        at += len(ids)
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_packed_graph_logits_alone_and_among_others_are_the_same_bits(loop: PagedLoop) -> None:
    whole = loop.step(IDS, 0, range(len(IDS)))
    for wanted in ([99], [0], [3, 50], [99, 98, 0]):
        np.testing.assert_array_equal(loop.step(IDS, 0, wanted), whole[wanted])


def test_packed_graph_decoded_token_by_token_reads_all_of_its_past(loop: PagedLoop) -> None:
    whole = loop.step(IDS, 0, range(len(IDS)))
    first = loop.step(IDS[:1], 0, [0])
    steps = [first, *(loop.step([token], at, [0]) for at, token in enumerate(IDS[1:], 1))]
    np.testing.assert_allclose(np.concatenate(steps), whole, atol=0.05)
    loop.step([1, *IDS[1:-1]], 0, [0])  # another first token moves the last logits
    assert np.abs(loop.step(IDS[-1:], 99, [0])[0] - whole[-1]).max() > 0.05
