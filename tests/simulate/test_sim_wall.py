"""Wall time: one device thread, DMA at its own time whoever waits."""

from __future__ import annotations

import threading
from dataclasses import replace

from sim_rig import SECOND, SMALL, Rig, prompt_of, row_of

from calserve.core.commands import ResetScope
from calserve.runtime.sim import SimDevice, WallClock
from calserve.runtime.sim.oracle import greedy_tokens

QUICK = replace(
    SMALL,
    timing=replace(
        SMALL.timing,
        decode_ns={1: 100_000, 4: 100_000, 8: 100_000, 16: 100_000},
        prefill_base_ns=100_000,
        prefill_token_ns=1_000,
        configure_ns=0,
        reset_ns=0,
    ),
)
SLOW = replace(QUICK, timing=replace(QUICK.timing, launch_ns=3_600 * SECOND))


def device_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sim-device"]


def test_wall_clock_tokens_are_right_and_the_thread_ends_with_the_board() -> None:
    assert not device_threads()
    rig = Rig.on(QUICK, WallClock())
    assert len(device_threads()) == 1
    assert rig.generate(prompt_of(9), 12) == greedy_tokens(prompt_of(9), 12, 64)
    rig.board.close()
    assert not device_threads()


def test_wall_clock_job_retires_without_anyone_waiting_for_it() -> None:
    rig = Rig.on(QUICK, WallClock())
    spec = rig.spec("prefill_b1", [row_of(0, 0, 9)])
    ticket, buffers = rig.start(spec, [prompt_of(9)])
    assert rig.session.drain(10 * SECOND) == 0
    buffers.host("tokens")[...] = 0  # too late to matter
    rig.finish(ticket)
    assert rig.best(spec, buffers) == greedy_tokens(prompt_of(9), 1, 64)
    rig.board.close()


def test_wall_clock_input_changed_before_its_dma_is_what_the_device_reads() -> None:
    rig = Rig.on(replace(QUICK, timing=replace(QUICK.timing, launch_ns=SECOND // 5)), WallClock())
    spec = rig.spec("prefill_b1", [row_of(0, 0, 9)])
    ticket, buffers = rig.start(spec, [prompt_of(9)])
    buffers.host("tokens")[0, :9] = prompt_of(9, 1)
    rig.finish(ticket)
    assert rig.best(spec, buffers) == greedy_tokens(prompt_of(9, 1), 1, 64)
    rig.board.close()


def test_wall_clock_wait_times_out_and_a_closed_board_leaves_the_job_to_the_device() -> None:
    rig = Rig.on(SLOW, WallClock())
    ticket, _ = rig.start(rig.spec("prefill_b1", [row_of(0, 0, 9)]), [prompt_of(9)])
    assert rig.session.wait(ticket, 1_000_000) == (13, None)
    device: SimDevice = rig.board.device
    rig.board.close()
    assert device.engine.running
    assert len(device_threads()) == 1  # it still has that job's events before it
    heir = Rig.on(SLOW, device=device, generation=2)
    assert heir.board.reset(ResetScope.BOARD, None) == 0  # which ends it
    heir.board.close()
    assert not device_threads()


def test_wall_clock_four_hosts_in_turn_use_one_thread_each_time() -> None:
    device = SimDevice(QUICK, WallClock())
    before = len(device_threads())
    for generation in range(1, 5):
        rig = Rig.on(QUICK, device=device, generation=generation)
        assert len(device_threads()) == before + 1
        rig.prefill(0, prompt_of(3))
        rig.board.close()
        assert len(device_threads()) == before
