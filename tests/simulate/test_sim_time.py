"""When things happen: DMA moments, phases and overlap, all against times added up by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from sim_rig import LANES, SECOND, SMALL, Rig, prompt_of, row_of

from calserve.core.job import Bank
from calserve.runtime.contract import LoadOptions, StatusKind
from calserve.runtime.encoding import encode
from calserve.runtime.sim import PROFILES, SimBoard, VirtualClock, sim_package
from calserve.runtime.sim.chrome_trace import chrome_trace
from calserve.runtime.sim.oracle import greedy_tokens
from calserve.runtime.sim.timeline import Timeline

# assumed-lanes, context 128: launch 20,000; DMA 10,000 + 100 a KiB; decode_b4 11,000,000 (all ns).
# decode_b4 reads 5 tensors x 4 rows x 4 bytes = 80 bytes and writes 4 x 64 x 4 = 1,024 bytes.
H2D, COMPUTE, D2H = 10_007, 11_000_000, 10_100
READ_AT = 20_000 + H2D
KV_AT = READ_AT + COMPUTE
DONE_AT = KV_AT + D2H


def stepped(max_in_flight: int = 1, **changes: object) -> tuple[Rig, VirtualClock, int]:
    """A rig on a clock that only the test moves, lane 0 and 1 prefilled; the time now."""
    clock = VirtualClock(auto_advance=True)
    rig = Rig.on(replace(SMALL, **changes), clock, max_in_flight=max_in_flight)
    for lane in (0, 1):
        rig.prefill(lane, prompt_of(9, lane))
    clock.auto_advance = False
    return rig, clock, clock.now_ns()


def decode_start(rig: Rig, lane: int, bank: Bank = Bank.AUTO):
    first = greedy_tokens(prompt_of(9, lane), 1, 64)[0]
    spec = rig.spec("decode_b4", [row_of(lane, 9, 1)], bank)
    ticket, buffers = rig.start(spec, [[first]])
    return spec, ticket, buffers


def test_decode_phases_take_the_times_of_the_profile() -> None:
    rig, clock, now = stepped()
    _, ticket, _ = decode_start(rig, 0)
    clock.advance(DONE_AT - 1)
    assert rig.session.wait(ticket, 0) == (13, None)
    clock.advance(1)
    code, status = rig.session.wait(ticket, 0)
    assert code == 0
    assert (status.h2d_ns, status.device_ns, status.d2h_ns) == (H2D, COMPUTE, D2H)
    spans = [(s.chip, s.core, s.phase, s.begin_ns - now, s.end_ns - now) for s in rig.board.trace(now)]
    assert spans == [
        (0, -1, "h2d", 20_000, READ_AT),
        (0, 0, "compute", READ_AT, KV_AT),
        (0, 1, "compute", READ_AT, KV_AT),
        (0, -1, "d2h", KV_AT, DONE_AT),
    ]


def test_prefill_time_grows_with_real_tokens_only() -> None:
    rig, clock, _ = stepped()
    ticket, _ = rig.start(rig.spec("prefill_b1", [row_of(2, 0, 5)]), [prompt_of(5)])
    # tokens and positions at the compiled 128 x 4 bytes each, one lane id: 1,028 bytes in; 256 out
    clock.advance(20_000 + 10_100 + 4_000_000 + 5 * 100_000 + 10_025)
    _, status = rig.session.wait(ticket, 0)
    assert (status.h2d_ns, status.device_ns, status.d2h_ns) == (10_100, 4_500_000, 10_025)


def test_session_over_two_chips_pays_for_traffic_and_traces_both() -> None:
    board = SimBoard(SMALL)
    _, session = board.configure(sim_package(SMALL), LoadOptions(chips=(1, 0)), "s", 1)
    rig = Rig(SMALL)
    rig.board, rig.session, rig.generation = board, session, 1
    ticket, _ = rig.start(rig.spec("prefill_b1", [row_of(0, 0, 5)]), [prompt_of(5)])
    assert rig.finish(ticket).device_ns == 4_500_000 + 5 * 10_000
    spans = [(s.chip, s.core, s.phase, s.end_ns - s.begin_ns) for s in board.trace(0)]
    assert spans == [
        *((chip, -1, "h2d", 10_100) for chip in (0, 1)),
        *((chip, core, "compute", 4_500_000) for chip in (0, 1) for core in (0, 1)),
        *((chip, -1, "d2d", 50_000) for chip in (0, 1)),
        *((chip, -1, "d2h", 10_025) for chip in (0, 1)),
    ]
    ends = {s.phase: s.end_ns for s in board.trace(0)}
    begins = {s.phase: s.begin_ns for s in board.trace(0)}
    assert (ends["compute"], ends["d2d"]) == (begins["d2d"], begins["d2h"])


@pytest.mark.parametrize(("when", "changes_result"), [(READ_AT - 1, True), (READ_AT, False)])
def test_host_input_is_read_when_its_dma_ends_not_at_submit(when: int, changes_result: bool) -> None:
    rig, clock, now = stepped()
    spec, ticket, buffers = decode_start(rig, 0)
    clock.advance_to(now + when)
    buffers.host("tokens")[0, 0] ^= 1
    clock.advance_to(now + DONE_AT)
    rig.finish(ticket)
    right = greedy_tokens(prompt_of(9), 2, 64)[1]
    assert (rig.best(spec, buffers) != [right]) is changes_result


def test_host_output_is_written_when_its_dma_ends_not_before() -> None:
    rig, clock, now = stepped()
    _, _, buffers = decode_start(rig, 0)
    buffers.host("logits")[...] = -7.0
    clock.advance_to(now + DONE_AT - 1)
    assert (buffers.host("logits") == -7.0).all()
    clock.advance_to(now + DONE_AT)
    assert not (buffers.host("logits") == -7.0).any()


def test_output_memory_given_to_another_job_too_early_is_overwritten() -> None:
    rig, clock, now = stepped(max_in_flight=2)
    spec, ticket, buffers = decode_start(rig, 0)
    clock.advance_to(now + DONE_AT)
    rig.finish(ticket)
    kept = rig.best(spec, buffers)
    first = greedy_tokens(prompt_of(9, 1), 1, 64)[0]
    assert buffers.undo_slices() == 0
    assert buffers.reset() == 0
    again = rig.spec("decode_b4", [row_of(0, 9, 1)])
    assert encode(rig.session.graphs["decode_b4"], again, [[first]], buffers) is None
    assert rig.session.submit(again, buffers)[0] == 0
    clock.advance(DONE_AT)
    assert rig.best(spec, buffers) != kept


def test_two_banks_overlap_dma_with_compute() -> None:
    rig, clock, now = stepped(max_in_flight=2)
    _, _, _ = decode_start(rig, 0)
    _, second, _ = decode_start(rig, 1)
    clock.advance(2 * DONE_AT)
    rig.finish(second)
    spans = {(s.job, s.phase): (s.begin_ns - now, s.end_ns - now) for s in rig.board.trace(now)}
    one, two = rig.jobs - 1, rig.jobs
    assert spans[two, "h2d"] == (READ_AT, READ_AT + H2D)  # while the first computes
    assert spans[two, "compute"] == (KV_AT, KV_AT + COMPUTE)  # one compute engine
    assert spans[one, "d2h"] == (KV_AT, DONE_AT)  # while the second computes
    banks = {(s.job, s.bank) for s in rig.board.trace(now)}
    assert banks == {(one, Bank.PING), (two, Bank.PONG)}  # AUTO is never what held a job


def test_span_names_the_bank_that_was_asked_for_and_the_jobs_generation() -> None:
    rig, clock, now = stepped(banks_overlap=False)
    decode_start(rig, 0, Bank.PONG)
    clock.advance(DONE_AT)
    assert {(s.bank, s.generation) for s in rig.board.trace(now)} == {(Bank.PONG, 1)}


@pytest.mark.parametrize("how", ["no overlap", "same bank"])
def test_jobs_that_share_a_bank_run_one_after_the_other(how: str) -> None:
    rig, clock, now = stepped(max_in_flight=2, banks_overlap=how != "no overlap")
    banks = (Bank.PONG, Bank.PONG) if how == "same bank" else (Bank.PING, Bank.PONG)
    decode_start(rig, 0, banks[0])
    decode_start(rig, 1, banks[1])
    clock.advance(3 * DONE_AT)
    spans = {(s.job, s.phase): s.begin_ns - now for s in rig.board.trace(now)}
    assert spans[rig.jobs, "h2d"] == DONE_AT


@pytest.mark.parametrize(("overlap", "begins"), [(True, 20_000), (False, DONE_AT)])
def test_two_chips_overlap_only_where_the_profile_says_so(overlap: bool, begins: int) -> None:
    profile = replace(SMALL, chips_overlap=overlap, banks_overlap=False)
    clock = VirtualClock(auto_advance=False)
    board = SimBoard(profile, clock=clock)
    for chip in (0, 1):
        name = f"s{chip}"
        _, session = board.configure(sim_package(profile), LoadOptions(chips=(chip,)), name, 1)
        rig = Rig(profile)
        rig.board, rig.session, rig.generation, rig.jobs = board, session, 1, chip
        rig.start(replace(rig.spec("decode_b4", [row_of(0, 0, 1)]), session=name), [[5]])
    clock.advance(SECOND)
    assert {s.chip: s.begin_ns for s in board.trace(0) if s.phase == "h2d"} == {0: 20_000, 1: begins}


def test_wait_on_moving_clock_stands_at_the_completion_and_at_the_timeout() -> None:
    clock = VirtualClock()
    rig = Rig.on(clock=clock)
    now = clock.now_ns()
    ticket, _ = rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[5]])
    assert rig.session.wait(ticket, 1_000_000) == (13, None)
    assert clock.now_ns() == now + 1_000_000
    rig.finish(ticket)
    assert clock.now_ns() == now + DONE_AT


def test_slow_calls_take_their_time_on_a_moving_clock() -> None:
    clock = VirtualClock()
    Rig.on(clock=clock)
    assert clock.now_ns() == 3_000_000_000


def test_clock_never_goes_back() -> None:
    clock = VirtualClock(5)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance_to(4)


def test_completion_is_delivered_once() -> None:
    rig = Rig.on()
    ticket, _ = rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[5]])
    rig.finish(ticket)
    assert rig.session.wait(ticket, SECOND) == (4, None)


def test_counters_close_after_a_drain() -> None:
    rig, clock, _ = stepped(max_in_flight=2, banks_overlap=False)
    decode_start(rig, 0)
    decode_start(rig, 1)
    counters = rig.board.counters()
    assert (counters.pending, counters.finished, counters.left) == (1, 2, 2)
    assert rig.session.drain(0) == 13
    clock.auto_advance = True
    assert rig.session.drain(SECOND) == 0
    counters = rig.board.counters()
    assert (counters.pending, counters.finished, counters.left) == (0, 4, 0)


def test_chrome_trace_has_a_process_a_chip_and_microseconds() -> None:
    rig, clock, now = stepped()
    decode_start(rig, 0)
    clock.advance(DONE_AT)
    events = json.loads(chrome_trace(rig.board.trace(now)))["traceEvents"]
    compute = next(event for event in events if event.get("cat") == "compute")
    assert (compute["ph"], compute["pid"], compute["dur"]) == ("X", 0, 11_000.0)
    assert compute["args"] == {"job": 3, "bank": "PING", "generation": 1}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"chip 0"}
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [threads[tid] for tid in sorted(threads)] == ["DMA H2D", "CalCore 0", "CalCore 1", "DMA D2H"]
    assert {threads[e["tid"]] for e in events if e.get("cat") == "compute"} == {"CalCore 0", "CalCore 1"}


def test_chrome_trace_of_two_chips_shows_the_link_between_them() -> None:
    rig = Rig.on(PROFILES["calculet-2chip"])
    rig.prefill(0, prompt_of(5))
    events = json.loads(chrome_trace(rig.board.trace(0)))["traceEvents"]
    links = [(e["pid"], e["dur"]) for e in events if e.get("cat") == "d2d"]
    assert links == [(0, 250.0), (1, 250.0)]  # 5 tokens at 50 microseconds
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["chip 0", "chip 1"]


def test_memory_and_running_jobs_survive_the_hosts_restart() -> None:
    clock = VirtualClock()
    rig = Rig.on(LANES, clock)
    prompt = prompt_of(9)
    first = rig.prefill(0, prompt)
    rig.start(rig.spec("decode_b4", [row_of(0, 9, 1)]), [[first]])
    rig.board.close()  # the process is gone with a job on the device
    heir = Rig.on(LANES, device=rig.board.device, generation=2)  # configuring takes longer than that job
    right = greedy_tokens(prompt, 3, 64)
    assert heir.decode(4, {0: (right[1], 10)})[0] == right[2]


def test_submit_while_one_is_in_flight_is_busy() -> None:
    rig, _, _ = stepped()
    decode_start(rig, 0)
    spec = rig.spec("decode_b4", [row_of(1, 9, 1)])
    assert rig.session.submit(spec, rig.buffers(spec, [[3]])) == (17, None)
    assert rig.session.close() == 17


def test_status_of_a_completion_names_its_ticket_and_generation() -> None:
    rig = Rig.on(generation=7)
    ticket, _ = rig.start(rig.spec("decode_b4", [row_of(0, 0, 1)]), [[5]])
    status = rig.finish(ticket)
    assert (status.ticket.job, status.generation, status.status) == (1, 7, StatusKind.DONE)


def test_two_chips_that_do_not_overlap_share_their_engines_whatever_the_banks_do() -> None:
    profile = replace(PROFILES["assumed-lanes"], chips_overlap=False, banks_overlap=True)
    timeline = Timeline(profile)
    first, second = (SimpleNamespace(chips=(chip,)) for chip in (0, 1))
    assert timeline.run(first, "compute", 0, 10) == (0, 10)  # type: ignore[arg-type]
    assert timeline.run(second, "compute", 0, 10) == (10, 20)  # type: ignore[arg-type]
    assert timeline.run(second, "h2d", 0, 5) == (0, 5)  # type: ignore[arg-type]
