"""A call to the board that raises on the engine thread: the process ends, loudly, and everybody is told before."""

from __future__ import annotations

import gc
import threading

import pytest
from fault_rig import Make, ended, ids_of, right_tokens
from threaded_rig import PATIENCE_S, threaded_rig

from calserve.core.outcomes import FaultClass, FinishReason, Usage
from calserve.executor.executor import EXIT_BROKEN_INVARIANT
from calserve.executor.messages import Ending
from calserve.executor.pool import Lease


def raising(*_: object) -> None:
    raise RuntimeError("the driver threw")


def internal(ending: Ending) -> bool:
    assert ending.failure is not None
    return (ending.reason, ending.failure.stage, ending.failure.fault, ending.usage) == (
        FinishReason.INTERNAL,
        "engine",
        FaultClass.PROGRAMMING,
        Usage(0, 0),
    )


def test_submit_that_raises_tells_everybody_and_what_was_decided_in_that_turn_holds(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`short` has its last token in the turn whose next submit breaks off: that is its answer."""
    rig = make()
    rig.submit("short", ids_of(rig, 1), 3)
    rig.submit("long", ids_of(rig, 2), 9)
    while len(rig.outlet.told["short"].tokens if "short" in rig.outlet.told else ()) < 2:
        rig.retire_one()
    rig.submit("late", ids_of(rig, 4), 9)
    monkeypatch.setattr(type(rig.steps.ports["s0"].session), "submit", raising)
    with pytest.raises(RuntimeError, match="the driver threw"):
        rig.settle()
    told, ending = ended(rig, "short")
    assert (told.tokens, ending.reason) == (right_tokens(rig, 3, 1), FinishReason.LENGTH)
    assert internal(ended(rig, "long")[1])
    assert internal(ended(rig, "late")[1])
    assert rig.steps.origins == {}


@pytest.mark.parametrize("what", ["undo_slices", "counters"])
def test_call_that_raises_before_any_decision_tells_everybody(
    make: Make, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    rig = make()
    rig.submit("a", ids_of(rig), 9)
    owner = rig.specs[0].lease.buffers if what == "undo_slices" else rig.board
    monkeypatch.setattr(type(owner), what, raising)
    rig.steps.audit.last_ns = None
    with pytest.raises(RuntimeError, match="the driver threw"):
        rig.retire_one()
    assert internal(ended(rig, "a")[1])


@pytest.mark.slow
def test_thread_that_breaks_off_tells_its_clients_before_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    with threaded_rig() as threaded:
        session = threaded.executor._steps.ports["s0"].session
        monkeypatch.setattr(type(session), "submit", raising)
        threaded.submit("a", [1, 2, 3], 4)
        threaded.wait_endings(1)
        assert threaded.outlet.exited.wait(PATIENCE_S)
        ending = threaded.outlet.told["a"].ending
        assert ending is not None
        assert internal(ending)
        assert [code for code, _ in threaded.outlet.exits] == [EXIT_BROKEN_INVARIANT]


@pytest.mark.slow
def test_job_in_flight_when_the_process_ends_stays_with_the_board_and_nobody_cries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread waits for it when the order to end comes: the memory is kept, on purpose, and dropped by nobody."""
    gc.collect()  # what other tests left behind cries now
    caplog.clear()
    left: list[Lease] = []
    monkeypatch.setattr("calserve.executor.pool._LEFT", left)
    with threaded_rig() as threaded:
        session = threaded.executor._steps.ports["s0"].session
        is_waited_on = threading.Event()
        monkeypatch.setattr(type(session), "wait", lambda *_: (is_waited_on.set(), (13, None))[1])
        threaded.submit("a", [1, 2, 3], 4)
        assert is_waited_on.wait(PATIENCE_S)
        assert threaded.executor.close()
    assert [lease.state.value for lease in left] == ["submitted"]
    del threaded, session
    gc.collect()
    left.clear()
    gc.collect()
    assert "dropped while submitted" not in caplog.text
