"""Weights to four and eight bits: what NNCF is asked for, and its failures."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calserve.package import PackageError
from calserve.package.pack.convert import compress


class Matrices:
    """A graph of constants of these element types, as far as `compress` looks."""

    def __init__(self, *types: str) -> None:
        self.types = types

    def get_ops(self) -> list[Any]:
        return [
            SimpleNamespace(
                get_type_name=lambda: "Constant",
                get_element_type=lambda name=name: SimpleNamespace(get_type_name=lambda: name),
            )
            for name in self.types
        ]


def stand_in(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> dict[str, Any]:
    """An NNCF that raises or returns `outcome`; what it was asked for."""
    asked: dict[str, Any] = {}

    def compress_weights(_: object, **settings: Any) -> Any:
        asked.update(settings)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    library = SimpleNamespace(
        compress_weights=compress_weights,
        CompressWeightsMode=SimpleNamespace(INT8_SYM="int8", INT4_ASYM="int4"),
        GroupSizeFallbackMode=str,
        AdvancedCompressionParameters=lambda **settings: settings,
    )
    monkeypatch.setitem(sys.modules, "nncf", library)
    return asked


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_compress_whatever_the_library_raises_is_its_reason(monkeypatch: pytest.MonkeyPatch, weights: str) -> None:
    class InvalidGroupSizeError(Exception):
        pass

    stand_in(monkeypatch, InvalidGroupSizeError("channels 32\nand groups 64."))
    with pytest.raises(PackageError) as caught:
        compress(None, weights)
    assert caught.value.fault.rule == "compress"
    assert str(caught.value) == f"The weights cannot be compressed to {weights} (channels 32 and groups 64)."


def test_compress_interrupted_stays_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        compress(None, "int4")


def test_compress_int4_lets_groups_become_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_in(monkeypatch, Matrices("f32", "u4"))
    compress(None, "int4")
    assert asked["group_size"] == 64
    assert asked["advanced_parameters"] == {"group_size_fallback_mode": "adjust", "min_adjusted_group_size": 16}


def test_compress_int4_without_a_matrix_of_four_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, Matrices("f32", "u8"))
    with pytest.raises(PackageError, match="no matrix has channels in groups of 16 or more"):
        compress(None, "int4")


@pytest.mark.slow
@pytest.mark.parametrize("channels", [32, 48, 96, 128])
def test_compress_int4_of_channels_that_64_does_not_divide_has_four_bits(channels: int) -> None:
    assert "u4" in types_of(compress(layers(channels), "int4"))


@pytest.mark.slow
def test_compress_int4_of_channels_that_nothing_divides_is_a_sentence() -> None:
    with pytest.raises(PackageError, match="cannot be compressed to int4"):
        compress(layers(41), "int4")


def layers(width: int, count: int = 6) -> Any:
    """Matrices of `width` by `width`, one after another."""
    import openvino as ov
    from openvino import opset13 as ops

    draws = np.random.default_rng(20261130)
    first = value = ops.parameter([1, width], np.float32, name="x")
    for _ in range(count):
        weights = ops.constant(draws.normal(size=(width, width)).astype(np.float32))
        value = ops.matmul(ops.relu(value), weights, transpose_a=False, transpose_b=True)
    return ov.Model([ops.result(value)], [first], "layers")


def types_of(graph: Any) -> set[str]:
    constants = [op for op in graph.get_ops() if op.get_type_name() == "Constant"]
    return {op.get_element_type().get_type_name() for op in constants}
