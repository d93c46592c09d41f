"""KV that decides the tokens: every way of reading the wrong memory shows in the output."""

from __future__ import annotations

from dataclasses import replace

from sim_rig import SMALL, Rig, prompt_of, row_of

from calserve.runtime.contract import InactiveLanePolicy, LoadOptions, StatusKind
from calserve.runtime.sim import SimBoard, sim_package
from calserve.runtime.sim.oracle import greedy_tokens

RIGHT = greedy_tokens(prompt_of(9), 12, 64)


def test_two_sequences_alternating_keep_their_own_tokens() -> None:
    rig = Rig.on()
    prompts = {0: prompt_of(9), 1: prompt_of(20, 1)}
    outputs = {lane: [rig.prefill(lane, prompt)] for lane, prompt in prompts.items()}
    for step in range(100):
        lane = step % 2
        position = len(prompts[lane]) + len(outputs[lane]) - 1
        outputs[lane].append(rig.decode(4, {lane: (outputs[lane][-1], position)})[lane])
    assert outputs == {lane: greedy_tokens(prompt, 51, 64) for lane, prompt in prompts.items()}


def test_swapped_lanes_change_both_outputs() -> None:
    rig = Rig.on()
    first = [rig.prefill(0, prompt_of(9)), rig.prefill(1, prompt_of(9, 1))]
    swapped = rig.decode(4, {0: (first[1], 9), 1: (first[0], 9)})
    assert swapped[0] != greedy_tokens(prompt_of(9, 1), 2, 64)[1]
    assert swapped[1] != RIGHT[1]


def test_swapped_kv_lanes_of_prefills_change_both_outputs() -> None:
    rig = Rig.on()
    first = [rig.prefill(1, prompt_of(9)), rig.prefill(0, prompt_of(9, 1))]
    stepped = rig.decode(4, {0: (first[0], 9), 1: (first[1], 9)})
    assert stepped[0] != RIGHT[1]
    assert stepped[1] != greedy_tokens(prompt_of(9, 1), 2, 64)[1]


def test_stale_kv_read_by_a_too_long_length_changes_the_output() -> None:
    rig = Rig.on()
    rig.generate(prompt_of(30, 1), 4)
    first = rig.prefill(0, prompt_of(9))
    assert first == RIGHT[0]  # what the new holder overwrote is clean
    assert rig.decode(4, {0: (first, 10)})[0] != RIGHT[1]  # slot 9 is the old holder's


def test_slot_never_written_changes_the_output() -> None:
    rig = Rig.on()
    first = rig.prefill(0, prompt_of(9))
    assert rig.decode(4, {0: (first, 10)})[0] != RIGHT[1]


def test_wrong_position_in_the_right_slot_changes_the_output() -> None:
    rig = Rig.on()
    first = rig.prefill(0, prompt_of(9))
    buffers = rig.buffers(spec := rig.spec("decode_b4", [row_of(0, 9, 1)]), [[first]])
    buffers.host("positions")[0, 0] = 8
    code, ticket = rig.session.submit(spec, buffers)
    assert code == 0
    rig.finish(ticket)
    assert rig.best(spec, buffers) != [RIGHT[1]]


def test_wrong_csr_on_b1_changes_the_output() -> None:
    rig = Rig.on()
    first = rig.prefill(0, prompt_of(9))
    buffers = rig.buffers(spec := rig.spec("decode_b1", [row_of(0, 9, 1)]), [[first]])
    assert buffers.set_csr("total_sequence_length", 9) == 0
    code, ticket = rig.session.submit(spec, buffers)
    assert code == 0
    rig.finish(ticket)
    assert rig.best(spec, buffers) != [RIGHT[1]]


def test_wrong_token_far_back_changes_the_output() -> None:
    rig = Rig.on()
    wrong = prompt_of(9)
    wrong[0] += 1
    assert rig.generate(wrong, 12) != RIGHT


def test_inactive_lane_filled_with_token_zero_damages_its_holder() -> None:
    rig = Rig.on()
    first = rig.prefill(0, prompt_of(9))
    mate = rig.prefill(1, prompt_of(9, 1))
    buffers = rig.buffers(spec := rig.spec("decode_b4", [row_of(1, 9, 1)]), [[mate]])
    buffers.host("valid")[0] = 1  # the made-up token: id 0 in a lane that took no part
    buffers.host("counts")[0] = 1
    buffers.host("lengths")[0] = 9
    code, ticket = rig.session.submit(spec, buffers)
    assert code == 0
    rig.finish(ticket)
    assert rig.decode(4, {0: (first, 9)})[0] != RIGHT[1]


def test_inactive_lane_under_position_minus_one_keeps_its_kv() -> None:
    rig = Rig.on(replace(SMALL, inactive_lane_policy=InactiveLanePolicy.POSITION_MINUS_ONE))
    output = [rig.prefill(0, prompt_of(9))]
    mate = [rig.prefill(1, prompt_of(9, 1))]
    for step in range(6):
        mate.append(rig.decode(4, {1: (mate[-1], 9 + step)})[1])
        output.append(rig.decode(4, {0: (output[-1], 9 + step)})[0])
    assert output == RIGHT[:7]
    assert mate == greedy_tokens(prompt_of(9, 1), 7, 64)


def test_job_with_impossible_rows_ends_in_a_ccu_exception() -> None:
    cases = {
        "tokens": ([0, 0], 64),  # beyond the vocabulary
        "counts": ([0], 2),  # more tokens than the row has
        "lengths": ([0], 129),  # beyond the context
    }
    for name, (index, value) in cases.items():
        rig = Rig.on()
        first = rig.prefill(0, prompt_of(9))
        buffers = rig.buffers(spec := rig.spec("decode_b4", [row_of(0, 9, 1)]), [[first]])
        buffers.host(name)[tuple(index)] = value
        code, ticket = rig.session.submit(spec, buffers)
        assert code == 0
        code, status = rig.session.wait(ticket, 10**12)
        assert (code, status.status) == (0, StatusKind.DONE_CCU_EXCEPTION), name
        assert rig.decode(4, {0: (first, 9)})[0] == RIGHT[1]  # nothing was written


def test_lane_beyond_the_configured_lanes_ends_in_a_ccu_exception() -> None:
    board = SimBoard(SMALL)
    _, session = board.configure(sim_package(SMALL), LoadOptions(chips=(0,), lanes=2), "s", 1)
    rig = Rig(SMALL)
    rig.board, rig.session, rig.generation = board, session, 1
    assert session.lanes == session.kv_units == 2
    ticket, _ = rig.start(rig.spec("prefill_b1", [row_of(2, 0, 3)]), [prompt_of(3)])
    assert session.wait(ticket, 10**12)[1].status is StatusKind.DONE_CCU_EXCEPTION


def test_kv_mirror_counts_whole_lanes_and_refuses_what_is_not_one() -> None:
    kv = Rig.on().session.kv
    assert kv.can_allocate(16)
    assert not kv.can_allocate(17)
    assert kv.apply(3, (3,), 128) == 0
    assert kv.apply(3, (3,), 5) == 0
    assert kv.can_allocate(15)
    assert not kv.can_allocate(16)
    assert kv.apply(3, (4,), 5) == 4
    assert kv.apply(16, (16,), 5) == 4
    assert kv.apply(3, (3,), 129) == 14
    assert kv.release(3) == 0
    assert kv.release(3) == 0
    assert kv.release(16) == 4
    assert kv.can_allocate(16)
