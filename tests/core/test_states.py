"""Every state x event of every table, against tables written here by hand from the design (section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import pytest

from calserve.core.states import (
    BUFFER_STEPS,
    GENERATION_STEPS,
    JOB_STEPS,
    KV_TXN_STEPS,
    LANE_STEPS,
    REQUEST_STEPS,
    BufferEvent,
    BufferState,
    GenerationEvent,
    GenerationState,
    IllegalTransition,
    JobEvent,
    JobState,
    KvTxnEvent,
    KvTxnState,
    LaneEvent,
    LaneState,
    RequestEvent,
    RequestState,
    step,
)

REQUEST = """
new: await_model>waiting_model enqueue>waiting_admission cancel>cancelled fail>failed
waiting_model: enqueue>waiting_admission cancel>cancelled fail>failed
waiting_admission: await_model>waiting_model admit>prefill_ready cancel>cancelled fail>failed
prefill_ready: start>prefill_running requeue>waiting_admission cancel>cancelled fail>failed
prefill_running: chunk_done>prefill_ready token_done>decode_ready roll_back>prefill_ready last_token>finishing
prefill_running: requeue>waiting_admission cancel>cancelled fail>failed
decode_ready: start>decode_running requeue>waiting_admission cancel>cancelled fail>failed
decode_running: token_done>decode_ready roll_back>decode_ready last_token>finishing
decode_running: requeue>waiting_admission cancel>cancelled fail>failed
finishing: tell>completed cancel>cancelled fail>failed
completed: cancel>completed
cancelled: cancel>cancelled
failed: cancel>failed
"""
JOB = """
created: admit>admitted
admitted: prepare>preparing
preparing: enqueue>queued fail>failed cancel>cancel_requested quarantine>quarantined
queued: submit>submitted fail>failed cancel>cancel_requested quarantine>quarantined
submitted: complete>completing cancel>cancel_requested quarantine>quarantined
cancel_requested: enqueue>cancel_requested submit>cancel_requested complete>completing fail>failed
cancel_requested: cancel>cancel_requested quarantine>quarantined
completing: succeed>succeeded fail>failed
succeeded:
failed:
quarantined:
"""
KV_TXN = """
reserved: submit>submitted roll_back>rolled_back lose>unknown
submitted: commit>committed lose>unknown
committed:
rolled_back:
unknown:
"""
LANE = """
free: reserve>reserved
reserved: update>updating release>free
active: update>updating release>free
updating: commit>active roll_back>active abandon>releasing lose>unknown
unknown:
releasing: release>free lose>unknown
"""
GENERATION = """
unloaded: load>validating
validating: validated>configuring drain>draining fail>failed
configuring: configured>warming drain>draining fail>failed
warming: warmed>ready drain>draining fail>failed
ready: drain>draining fail>failed
draining: unload>unloading recover>recovering fail>failed
unloading: released>unloaded recover>recovering fail>failed
recovering: recovered>configuring unload>unloading fail>failed
failed: load>validating unload>unloading
"""
BUFFER = """
free: lease>preparing
preparing: give_up>free submit>submitted quarantine>quarantined
submitted: run>running retire>completing quarantine>quarantined
running: retire>completing quarantine>quarantined
completing: give_back>free quarantine>quarantined
quarantined: rebuild>free
"""


def parse(text: str) -> tuple[list[str], dict[tuple[str, str], str]]:
    states: list[str] = []
    steps: dict[tuple[str, str], str] = {}
    for line in text.strip().splitlines():
        state, rest = line.split(":")
        states += [] if state in states else [state]
        for move in rest.split():
            event, target = move.split(">")
            steps[state, event] = target
    return states, steps


MACHINES: list[tuple[str, type[Enum], type[Enum], Mapping[tuple[Enum, Enum], Enum]]] = [
    (REQUEST, RequestState, RequestEvent, REQUEST_STEPS),
    (JOB, JobState, JobEvent, JOB_STEPS),
    (KV_TXN, KvTxnState, KvTxnEvent, KV_TXN_STEPS),
    (LANE, LaneState, LaneEvent, LANE_STEPS),
    (GENERATION, GenerationState, GenerationEvent, GENERATION_STEPS),
    (BUFFER, BufferState, BufferEvent, BUFFER_STEPS),
]
CASES = [
    pytest.param(table, state, event, parse(text)[1].get((state.value, event.value)), id=f"{state}-{event.name}")
    for text, states, events, table in MACHINES
    for state in states
    for event in events
]


@pytest.mark.parametrize(("table", "state", "event", "expected"), CASES)
def test_step_every_state_and_event_follows_the_table_or_raises(
    table: Mapping[tuple[Enum, Enum], Enum], state: Enum, event: Enum, expected: str | None
) -> None:
    before = dict(table)
    if expected is None:
        with pytest.raises(IllegalTransition, match=f"{state.name} has no step for {event.name}"):
            step(table, state, event)
    else:
        assert step(table, state, event).value == expected
    assert dict(table) == before


@pytest.mark.parametrize(("text", "states"), [(text, states) for text, states, _, _ in MACHINES])
def test_states_are_named_as_the_design_names_them(text: str, states: type[Enum]) -> None:
    assert {state.value for state in states} == set(parse(text)[0])


def test_terminal_request_states_are_left_by_nothing() -> None:
    for state in (RequestState.COMPLETED, RequestState.CANCELLED, RequestState.FAILED):
        assert {target for (source, _), target in REQUEST_STEPS.items() if source is state} == {state}


def test_a_lane_a_device_may_still_write_is_never_one_step_from_a_new_holder() -> None:
    for state in (LaneState.UPDATING, LaneState.RELEASING, LaneState.UNKNOWN):
        assert (state, LaneEvent.RESERVE) not in LANE_STEPS
