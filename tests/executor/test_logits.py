"""Logits from every layout and type into rows a sampler reads: right, in one pass, and never past an end."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import Task
from calserve.executor.logits import LogitsFault, gather_logits
from calserve.runtime.contract import GraphContract, InactiveLanePolicy, KvLayout, TensorContract
from calserve.sampling.params import SamplingParams
from calserve.sampling.sampler import Sampler, choose_rows

Raw = np.ndarray[Any, np.dtype[Any]]


def contract_of(shape: tuple[int, ...], vocab: int, dtype: str = "float32", tile: int = 1) -> GraphContract:
    size = int(np.prod(shape)) * (2 if dtype == "bfloat16" else 4)
    profile = GraphProfile("g", frozenset({Task.DECODE}), 4, True, RowBinding.FIXED, 64, 1, 4, 1)
    outputs = {"logits": TensorContract("logits", shape, dtype, size, False)}
    policy = InactiveLanePolicy.VALID_MASK
    return GraphContract(profile, KvLayout.LANES, {}, outputs, (), policy, vocab, logits_tile=tile)


def bits_of(values: Raw) -> Raw:
    """bfloat16 by its definition: sign, 8 bits of exponent, 7 of fraction, from the decimal value; exact ones only."""
    out = np.zeros(values.shape, np.uint16)
    for at, value in np.ndenumerate(values):
        sign, exponent, fraction = int(value < 0), 0, 0
        if value:
            mantissa, power = np.frexp(abs(value))
            exponent, fraction = int(power) - 1 + 127, int((mantissa * 2 - 1) * 128)
            assert (mantissa * 2 - 1) * 128 == fraction
        out[at] = sign << 15 | exponent << 7 | fraction
    return out


def plain(rows: int, vocab: int) -> Raw:
    """Small values that bfloat16 holds exactly, each place another."""
    return (np.arange(rows * vocab).reshape(rows, vocab) % 251 - 125).astype(np.float32) / 8


def tiled(values: Raw, tile: int) -> Raw:
    """Element v of row r at [v // T, r, v % T], one by one; what lies behind the vocabulary is NaN."""
    rows, vocab = values.shape
    out = np.full((-(-vocab // tile), rows, tile), np.nan, np.float32)
    for r in range(rows):
        for v in range(vocab):
            out[v // tile, r, v % tile] = values[r, v]
    return out


ROWS = pytest.mark.parametrize("rows", [[0], [0, 1, 2, 3], [3], [1, 3], [2, 0]], ids=str)


@ROWS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tile", [1, 7, 16, 100])
def test_logits_of_every_layout_and_type_are_the_rows_values(rows: list[int], dtype: str, tile: int) -> None:
    values = plain(4, 37)
    laid = values if tile == 1 else tiled(values, tile)
    output = laid if dtype == "float32" else np.where(np.isnan(laid), 0x7FC0, bits_of(np.nan_to_num(laid)))
    output = output.astype(np.uint16 if dtype == "bfloat16" else np.float32)
    got = gather_logits(contract_of(output.shape, 37, dtype, tile), output, rows)
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, values[rows])


def test_logits_plain_and_leading_are_a_view() -> None:
    output = plain(4, 37)
    got = gather_logits(contract_of((4, 37), 37), output, [0, 1])
    assert isinstance(got, np.ndarray)
    assert np.shares_memory(got, output)


def test_logits_with_a_batch_axis_are_read_as_rows() -> None:
    """The seed's shape: [1, 1, vocab], BF16."""
    output = bits_of(plain(1, 37)).reshape(1, 1, 37)
    got = gather_logits(contract_of((1, 1, 37), 37, "bfloat16"), output, [0])
    np.testing.assert_array_equal(got, plain(1, 37))


def test_logits_wider_than_the_vocabulary_are_cut() -> None:
    got = gather_logits(contract_of((4, 48), 37), plain(4, 48), [0, 1, 2, 3])
    np.testing.assert_array_equal(got, plain(4, 48)[:, :37])


@pytest.mark.parametrize("tile", [1, 16])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [3, 1]], ids=str)
def test_logits_in_bfloat16_allocate_the_result_and_nothing_of_its_size(tile: int, rows: list[int]) -> None:
    """Seed 003, section 10.1: no temporary of a vocabulary's size."""
    vocab = 151_936
    shape = (4, vocab) if tile == 1 else (vocab // tile, 4, tile)
    output = np.full(shape, 0x3F80, np.uint16)
    contract = contract_of(shape, vocab, "bfloat16", tile)
    gather_logits(contract, output, rows)
    tracemalloc.start()
    try:
        got = gather_logits(contract, output, rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(got, np.ndarray)
    assert (got == 1.0).all()
    one_row = vocab * 4
    assert got.nbytes == len(rows) * one_row
    assert peak < got.nbytes + one_row // 4


def fault_of(contract: GraphContract, output: Raw, rows: list[int]) -> int:
    fault = gather_logits(contract, output, rows)
    assert isinstance(fault, LogitsFault), fault
    return fault.code


@pytest.mark.parametrize(
    ("output", "rows", "code"),
    [
        (np.zeros((4, 18), np.float32), [0], 22),  # half of each row came back (seed 003, FI09)
        (np.zeros((4, 36), np.float32), [0], 22),
        (np.zeros((2, 37), np.float32), [2], 14),
        (np.zeros((2, 37), np.float32), [0, 2], 14),
        (np.zeros((2, 37), np.float32), [-1], 14),
        (np.zeros((0, 37), np.float32), [0], 14),
        (np.zeros((4, 37), np.float32), [2**62], 14),  # base + vocab would overflow 64 bits
        (np.zeros(148, np.float32), [0], 22),
        (np.zeros((2, 2, 37), np.float32), [0], 22),
        (np.zeros((4, 37), np.float16), [0], 21),
        (np.zeros((4, 37), np.uint16), [0], 21),
    ],
    ids=lambda given: str(getattr(given, "shape", given)),
)
def test_logits_that_are_not_the_contracts_are_refused_unread(output: Raw, rows: list[int], code: int) -> None:
    assert fault_of(contract_of((4, 37), 37), output, rows) == code


@pytest.mark.parametrize(
    ("shape", "rows", "code"),
    [
        ((2, 4, 16), [0], 22),  # a tile too few: 32 < 37
        ((4, 4, 16), [0], 22),
        ((3, 4, 8), [0], 22),
        ((3, 2, 16), [2], 14),
        ((3, 2, 16), [-1], 14),
        ((3, 64), [0], 22),
    ],
    ids=str,
)
def test_tiled_logits_of_another_layout_are_refused_unread(shape: tuple[int, ...], rows: list[int], code: int) -> None:
    assert fault_of(contract_of((3, 4, 16), 37, tile=16), np.zeros(shape, np.float32), rows) == code


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, np.nan), (18, np.nan), (36, np.nan), (7, np.inf), (slice(None), -np.inf)],
    ids=["nan-first", "nan-middle", "nan-last", "inf", "all-minus-inf"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tile", [1, 16])
def test_row_that_is_not_finite_is_an_error_of_the_output_and_its_mates_are_read(
    place: int | slice, value: float, dtype: str, tile: int
) -> None:
    values = plain(2, 37)
    bad = values.copy()
    bad[1, place] = value
    laid = bad if tile == 1 else tiled(bad, tile)
    output = laid if dtype == "float32" else (laid.view(np.uint32) >> 16).astype(np.uint16)
    logits = gather_logits(contract_of(output.shape, 37, dtype, tile), output, [0, 1])
    assert isinstance(logits, np.ndarray)
    samplers = [Sampler(SamplingParams(temperature=0.0), 37) for _ in range(2)]
    good, wrong = choose_rows(samplers, logits, [0, 0])
    assert (good.token, good.error) == (int(values[0].argmax()), None)
    assert wrong.error is not None
    assert not wrong.is_own_fault


def test_minus_infinity_beside_finite_logits_is_a_token_that_cannot_be_chosen() -> None:
    values = plain(1, 37)
    values[0, :36] = -np.inf
    logits = gather_logits(contract_of((1, 37), 37), values, [0])
    assert isinstance(logits, np.ndarray)
    assert choose_rows([Sampler(SamplingParams(temperature=0.0), 37)], logits, [0])[0].token == 36
