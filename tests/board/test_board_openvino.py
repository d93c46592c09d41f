"""The `openvino` board's own guards: what would let the device touch memory that is not the job's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from harness import LONG_NS, Hand, Turn, best, bits, configure, every_chip, prompt

from calserve.core.commands import ResetScope
from calserve.core.job import Bank, JobSpec, Task
from calserve.package import open_package
from calserve.runtime.contract import BoardPackage, LoadOptions, Session, StatusKind
from calserve.runtime.encoding import encode
from calserve.runtime.errors import CalCode
from calserve.runtime.openvino import OpenVinoBoard
from calserve.runtime.openvino.faults import FaultLog
from calserve.runtime.openvino.kv import LaneUnits


@pytest.fixture
def package(tiny_package: Path) -> BoardPackage:
    return open_package(tiny_package)


@pytest.fixture
def openvino() -> Iterator[OpenVinoBoard]:
    board = OpenVinoBoard.open()
    yield board
    board.close()


@pytest.fixture
def session(openvino: OpenVinoBoard, package: BoardPackage) -> Session:
    return configure(openvino, package)


@pytest.fixture
def hand(session: Session) -> Hand:
    return Hand(session)


def two_rows(hand: Hand, package: BoardPackage) -> tuple[JobSpec, list[list[int]]]:
    turns = [Turn(hand.line(lane), prompt(package, 5, salt=lane)) for lane in (0, 1)]
    return hand.describe(turns)


def change_row(spec: JobSpec, **fields: object) -> JobSpec:
    return replace(spec, rows=(spec.rows[0], replace(spec.rows[1], **fields)))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"kv_units": (10_000,)}, 14),
        ({"kv_units": (-1,)}, 14),
        ({"kv_units": (0,)}, 14),  # the first row's unit
        ({"kv_units": ()}, 14),
        ({"kv_units": tuple(range(1, 200))}, 14),
        ({"lane": 0}, 14),
        ({"lane": 16}, 14),
        ({"lane": -1}, 14),
        ({"first_position": -1}, 14),
        ({"first_position": 508}, 14),
        ({"token_count": 0}, 22),
        ({"token_count": 513}, 22),
        ({"token_count": 4}, 22),  # a job the tensors do not hold
    ],
    ids=str,
)
def test_submit_a_row_outside_the_graph_is_refused_before_the_device(
    openvino: OpenVinoBoard, hand: Hand, package: BoardPackage, fields: dict[str, object], code: int
) -> None:
    spec, tokens = two_rows(hand, package)
    buffers = hand.buffers("step")
    assert encode(hand.session.graphs["step"], spec, tokens, buffers) is None
    assert hand.session.submit(change_row(spec, **fields), buffers) == (code, None)
    assert openvino.counters().finished == 0
    assert openvino.health().ok
    assert openvino.health().detail.startswith("submit: ")
    assert len(hand.land(hand.fly(spec, tokens))) == 2


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        ("block_indices", 10_000),
        ("block_indices", -1),
        ("input_ids", 320),
        ("input_ids", -5),
        ("sampled_tokens_indices", 10),
        ("sampled_tokens_indices", -1),
    ],
)
def test_submit_tensor_values_that_are_bad_addresses_are_refused(
    hand: Hand, package: BoardPackage, tensor: str, value: int
) -> None:
    spec, tokens = two_rows(hand, package)
    buffers = hand.buffers("step")
    assert encode(hand.session.graphs["step"], spec, tokens, buffers) is None
    buffers.host(tensor)[1] = value
    assert hand.session.submit(spec, buffers) == (14, None)


def test_submit_too_many_rows_tokens_or_tasks_is_refused(hand: Hand, package: BoardPackage) -> None:
    spec, tokens = two_rows(hand, package)
    buffers = hand.buffers("step")
    assert encode(hand.session.graphs["step"], spec, tokens, buffers) is None
    many = tuple(replace(spec.rows[0], lane=lane, kv_units=(lane,)) for lane in range(17))
    assert hand.session.submit(replace(spec, rows=many), buffers)[0] == 22
    assert hand.session.submit(replace(spec, rows=()), buffers)[0] == 22
    assert hand.session.submit(replace(spec, bank=Bank.PONG), buffers)[0] == 4
    assert spec.task is Task.PREFILL


@pytest.fixture
def two_chips() -> Iterator[OpenVinoBoard]:
    # Closed whatever happens: cores set aside for a chip stay so until its session is gone.
    board = OpenVinoBoard.open(chips=2)
    yield board
    board.close()


@pytest.fixture
def pair(two_chips: OpenVinoBoard, package: BoardPackage) -> list[Hand]:
    """One session on each chip."""
    hands = []
    for chip in (0, 1):
        code, session = two_chips.configure(package, LoadOptions(chips=(chip,)), f"chip{chip}", 1)
        assert code == 0
        assert session is not None
        hands.append(Hand(session))
    return hands


def test_submit_buffers_of_another_session_are_refused(pair: list[Hand], package: BoardPackage) -> None:
    first, second = pair
    spec, tokens = first.describe([Turn(first.line(0), prompt(package, 5))])
    buffers = second.buffers("step")
    assert encode(first.session.graphs["step"], spec, tokens, buffers) is None
    assert first.session.submit(spec, buffers) == (4, None)


def test_two_chips_jobs_in_flight_together_equal_alone(
    two_chips: OpenVinoBoard, pair: list[Hand], package: BoardPackage
) -> None:
    prompts = [prompt(package, 500, salt=chip) for chip in (0, 1)]
    lines = [hand.line(0) for hand in pair]
    alone = []
    for hand, line, ids in zip(pair, lines, prompts, strict=True):
        row = hand.prefill(line, ids)
        alone.append(bits(row))
        hand.release(line)
    overlapped = 0
    for _ in range(10):  # one of them is enough: other load on the machine may part two short jobs
        sent = [hand.describe([Turn(line, ids)]) for hand, line, ids in zip(pair, lines, prompts, strict=True)]
        flying = [hand.fly(*job) for hand, job in zip(pair, sent, strict=True)]
        assert two_chips.counters().pending == 2
        together = [hand.land(job)[0] for hand, job in zip(pair, flying, strict=True)]
        assert [bits(row) for row in together if row is not None] == alone
        first, second = two_chips.trace(0)[-2:]
        overlapped += max(first.begin_ns, second.begin_ns) < min(first.end_ns, second.end_ns)
        assert {first.chip, second.chip} == {0, 1}
    assert overlapped


def test_reset_of_one_chips_session_leaves_the_other_running(
    two_chips: OpenVinoBoard, pair: list[Hand], package: BoardPackage
) -> None:
    lines = [hand.line(0) for hand in pair]
    for hand, line in zip(pair, lines, strict=True):
        hand.prefill(line, prompt(package, 20))
    true = bits(pair[1].again([lines[1]], [3])[0])
    assert two_chips.reset(ResetScope.SESSION, "chip0") == 0
    assert bits(pair[1].again([lines[1]], [3])[0]) == true


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"settings": {}}, 5),
        ({"settings": {"CACHE_DIR": "/tmp"}}, 5),
        ({"numerics": "exact", "settings": "u8"}, 5),
        ({"files": {}}, 19),
        ({"vocab_size": 321}, 19),
        ({"kv": "layers"}, 19),
        ({"kv": "unit"}, 19),
    ],
    ids=str,
)
def test_configure_a_package_that_contradicts_itself_is_an_artifact_fault(
    openvino: OpenVinoBoard, package: BoardPackage, change: dict[str, object], code: int
) -> None:
    wrong = dict(change)
    if wrong.get("settings") == "u8":
        wrong["settings"] = {**package.settings, "KV_CACHE_PRECISION": "u8"}
    elif wrong.get("settings"):
        wrong["settings"] = {**package.settings, **change["settings"]}  # type: ignore[dict-item]
    if wrong.get("kv") == "layers":
        wrong["kv"] = {**package.kv, "n_layers": 3}
    if wrong.get("kv") == "unit":
        wrong["kv"] = {**package.kv, "unit_tokens": 16}
    given, session = openvino.configure(replace(package, **wrong), every_chip(openvino), "main", 1)
    assert (given, session) == (code, None)
    assert openvino.health().ok
    configure(openvino, package)


@pytest.mark.parametrize("content", [b"", b"<net", b"not xml at all" * 100])
def test_configure_a_broken_graph_file_is_code_nineteen(
    openvino: OpenVinoBoard, package: BoardPackage, tmp_path: Path, content: bytes
) -> None:
    graph = tmp_path / "step.xml"
    graph.write_bytes(content)
    code, session = openvino.configure(replace(package, files={"graph:step": graph}), every_chip(openvino), "main", 1)
    assert (code, session) == (19, None)
    assert openvino.health().detail


def test_configure_fewer_lanes_and_a_smaller_pool_hold(openvino: OpenVinoBoard, package: BoardPackage) -> None:
    code, session = openvino.configure(package, LoadOptions(chips=(0,), lanes=4, kv_tokens=100), "main", 1)
    assert code == 0
    assert session is not None
    assert (session.lanes, session.unit_tokens, session.kv_units) == (4, 32, 4)
    assert session.graphs["step"].profile.batch == 4
    assert session.graphs["step"].scratch_units == (4,)
    hand = Hand(session)
    assert best(hand.prefill(hand.line(0), prompt(package, 100))) >= 0


def test_open_more_chips_than_there_are_is_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"has 1 chip, or 2 on CPU; 3 on CPU were asked for\."):
        OpenVinoBoard.open(chips=3)
    OpenVinoBoard.open(chips=1).close()


def test_wait_a_job_the_device_kills_is_a_crash_until_a_reset(
    openvino: OpenVinoBoard, hand: Hand, package: BoardPackage
) -> None:
    """The library's own stop stands for a device that dies under a job."""
    flying = hand.fly(*hand.describe([Turn(hand.line(0), prompt(package, 511))]))
    flying.buffers.request.cancel()  # type: ignore[attr-defined]
    code, status = hand.session.wait(flying.ticket, LONG_NS)
    assert code == 28
    assert status is not None
    assert status.status is StatusKind.DONE_CCU_EXCEPTION
    assert not openvino.health().ok
    assert flying.buffers.reset() == 24
    assert openvino.counters().left == 0
    assert openvino.reset(ResetScope.SESSION, "main") == 0
    assert openvino.health().ok


@pytest.mark.parametrize(
    ("stage", "error", "code"),
    [
        ("compile", RuntimeError("anything"), 19),
        ("compile", RuntimeError("std::bad_alloc"), 1),
        ("compile", MemoryError(), 1),
        ("read", FileNotFoundError("x"), 10),
        ("compile", RuntimeError("Device with NPU name is not registered in the OpenVINO Runtime"), 18),
        ("submit", RuntimeError("Infer Request is busy"), 17),
        ("wait", RuntimeError("anything"), 28),
    ],
)
def test_fault_log_texts_of_the_library_become_codes(stage: str, error: Exception, code: int) -> None:
    log = FaultLog()
    assert log.note(stage, error) == code
    assert log.broken == (code == CalCode.DEVICE_CRASH)
    assert log.detail.startswith(stage)


def test_lane_units_growing_and_giving_back_keeps_the_count() -> None:
    units = LaneUnits(lanes=2, units=4, unit_tokens=32)
    assert units.apply(0, (0, 1), 40) == 0
    assert units.apply(1, (1,), 3) == 1
    assert units.apply(1, (2, 2), 3) == 14
    assert units.apply(1, (2,), 33) == 14
    assert units.apply(1, (2, 3), 33) == 0
    assert not units.can_allocate(1)
    assert units.apply(0, (0,), 5) == 0
    assert units.can_allocate(1)
    assert units.release(1) == 0
    assert units.can_allocate(3)
    assert units.apply(0, (1, 2, 3), 96) == 0


def test_restored_logits_shape_follows_each_job(hand: Hand, package: BoardPackage) -> None:
    """A wide job before a narrow one: the narrow one's output has its own number of rows."""
    lines = [hand.line(lane) for lane in range(4)]
    for line in lines:
        hand.prefill(line, prompt(package, 8, salt=line.lane))
    assert len(hand.again(lines, [1, 2, 3, 4])) == 4
    flying = hand.fly(*hand.describe([Turn(lines[0], [1])]))
    assert flying.buffers.output("logits").shape == (1, package.vocab_size)
    row = hand.land(flying)[0]
    assert row is not None
    assert np.isfinite(row).all()


def test_exact_job_of_one_token_is_padded_with_a_row_in_the_scratch_unit(hand: Hand, package: BoardPackage) -> None:
    """One flat token alone may take another numeric path; whether it does depends on the processor."""
    line = hand.line(0)
    hand.prefill(line, prompt(package, 40))
    flying = hand.fly(*hand.describe([Turn(line, [7])]))
    values = {name: flying.buffers.host(name).tolist() for name in flying.contract.inputs}
    assert values["input_ids"][:3] == [7, 7, 0]
    assert values["position_ids"][:2] == [40, 0]
    assert values["past_lens"][:3] == [40, 0, 0]
    assert values["subsequence_begins"][:3] == [0, 1, 2]
    assert values["block_indices"][:4] == [0, 1, 256, 0]  # 16 lanes x 16 blocks, then the scratch unit
    assert values["block_indices_begins"][:3] == [0, 2, 3]
    assert values["sampled_tokens_indices"][:2] == [0, 0]
    assert values["max_context_len"] == 41
    hand.land(flying)


def test_signal_after_a_core_ended_on_another_thread_is_handled_and_kills_nobody() -> None:
    """In a process of its own: what goes wrong is a SIGSEGV. Where there is no AMX nothing could."""
    program = """
import signal, sys, threading
from calserve.runtime.openvino.core import new_core
told = []
signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
held = [new_core("CPU")]
ender = threading.Thread(target=held.clear)
ender.start()
ender.join()
signal.raise_signal(signal.SIGTERM)
sys.exit(0 if told == [signal.SIGTERM] else 1)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=120)
    assert ended.returncode == 0, ended
