"""A board as an earlier process left it, and a board or a package that breaks off in the middle of an order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calserve.core.commands import Configure, ResetScope, Validate, Warm
from calserve.core.events import BoardAnomaly, Configured, Validated, Warmed
from calserve.core.outcomes import FaultClass
from calserve.executor.lifecycle import LifecycleOrder, LifecycleSteps, drive
from calserve.executor.opening import WAIT_NS, BoardOpening
from calserve.runtime.contract import Counters, Health, LoadOptions
from calserve.runtime.sim import SimBoard, VirtualClock, sim_package

PACKAGE = sim_package()


@pytest.fixture
def board() -> Iterator[SimBoard]:
    made = SimBoard(clock=VirtualClock())
    yield made
    made.close()


class Left:
    """`left` jobs on the board until somebody sets it; resets are noted and give `code`."""

    def __init__(self, board: SimBoard, monkeypatch: pytest.MonkeyPatch, left: int, code: int = 0) -> None:
        self.left, self.resets = left, []  # type: ignore[var-annotated]
        monkeypatch.setattr(board, "counters", lambda: Counters(0, 0, self.left))

        def reset(scope: ResetScope, session: str | None) -> int:
            self.resets.append((scope, session))
            return code

        monkeypatch.setattr(board, "reset", reset)


def test_jobs_that_end_by_themselves_cost_no_reset(board: SimBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    found, opening = Left(board, monkeypatch, 2), BoardOpening(board)
    first = opening.look(0)
    assert first.failure is not None
    assert (first.failure.code, first.failure.fault) == (17, FaultClass.TRANSIENT)
    assert first.told == "2 jobs of an earlier process are on the board"
    assert opening.look(WAIT_NS - 1).told == ""
    found.left = 0
    assert opening.look(WAIT_NS).failure is None
    assert (opening.is_clear, found.resets) == (True, [])


@pytest.mark.parametrize(("code", "is_clear"), [(0, True), (25, False)])
def test_jobs_that_stay_cost_one_reset_whatever_it_gave(
    board: SimBoard, monkeypatch: pytest.MonkeyPatch, code: int, is_clear: bool
) -> None:
    found, opening = Left(board, monkeypatch, 1, code), BoardOpening(board)
    opening.look(0)
    told = opening.look(WAIT_NS)
    assert told.before is not None
    assert told.after is not None
    assert opening.is_clear is is_clear
    if not is_clear:
        again = opening.look(9 * WAIT_NS)
        assert again.failure is not None
        assert again.failure.code == code
    assert found.resets == [(ResetScope.CHIP, None)]


def test_board_that_is_ill_is_not_waited_for(board: SimBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    found, opening = Left(board, monkeypatch, 1), BoardOpening(board)
    monkeypatch.setattr(board, "health", lambda: Health(False, "lost"))
    opening.look(0)
    assert len(found.resets) == 1


def steps_of(board: SimBoard) -> LifecycleSteps:
    return LifecycleSteps(board, lambda _hash: PACKAGE, {"s0": LoadOptions((0, 1))}, board.device.clock.now_ns)


def test_reset_before_the_first_use_is_told_with_how_the_board_stood(
    board: SimBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    Left(board, monkeypatch, 1)
    steps = steps_of(board)
    drive(steps.take(LifecycleOrder(Validate("s0", 1, "m", PACKAGE.hash))))
    drive(steps.take(LifecycleOrder(Configure("s0", 1, PACKAGE.hash))))
    board.device.clock.advance(WAIT_NS)
    done = drive(steps.take(LifecycleOrder(Configure("s0", 1, PACKAGE.hash))))
    (told,) = done.aside
    assert isinstance(told, BoardAnomaly)
    assert "a chip reset gave code 0" in told.detail
    assert told.before is not None
    assert told.before.is_healthy


def breaks(*_given: object) -> object:
    raise RuntimeError("the driver broke off")


def test_package_that_breaks_its_reader_is_refused(board: SimBoard) -> None:
    steps = steps_of(board)
    steps.open_package = breaks  # type: ignore[assignment]
    event = drive(steps.take(LifecycleOrder(Validate("s0", 1, "m", PACKAGE.hash)))).event
    assert isinstance(event, Validated)
    assert event.failure is not None
    assert event.failure.fault is FaultClass.ARTIFACT
    assert event.failure.detail == "RuntimeError: the driver broke off"


@pytest.mark.parametrize("answer", ["raises", "nothing", "both"])
def test_configure_that_breaks_off_or_contradicts_itself_leaves_the_board_unknown(
    board: SimBoard, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    steps, configure = steps_of(board), board.configure
    drive(steps.take(LifecycleOrder(Validate("s0", 1, "m", PACKAGE.hash))))
    answers = {
        "raises": breaks,
        "nothing": lambda *_given: (0, None),
        "both": lambda *given: (5, configure(*given)[1]),
    }
    monkeypatch.setattr(board, "configure", answers[answer])
    event = drive(steps.take(LifecycleOrder(Configure("s0", 1, PACKAGE.hash)))).event
    assert isinstance(event, Configured)
    assert event.failure is not None
    assert event.failure.fault is FaultClass.UNKNOWN
    assert not steps.building


@pytest.mark.parametrize("call", ["submit", "wait"])
def test_call_that_raises_in_a_warm_up_leaves_a_job_that_never_ended(
    board: SimBoard, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """And its memory is kept: the device may write it. Only a refusal says that it took no job."""
    steps = steps_of(board)
    drive(steps.take(LifecycleOrder(Validate("s0", 1, "m", PACKAGE.hash))))
    drive(steps.take(LifecycleOrder(Configure("s0", 1, PACKAGE.hash))))
    monkeypatch.setattr(steps.building["s0"], call, breaks)
    event = drive(steps.take(LifecycleOrder(Warm("s0", 1)))).event
    assert isinstance(event, Warmed)
    assert event.failure is not None
    assert (event.failure.stage, event.failure.fault) == ("lost", FaultClass.UNKNOWN)
    assert len(steps.unended["s0"]) == 1


def test_submit_that_is_refused_in_a_warm_up_leaves_no_job(board: SimBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(board)
    drive(steps.take(LifecycleOrder(Validate("s0", 1, "m", PACKAGE.hash))))
    drive(steps.take(LifecycleOrder(Configure("s0", 1, PACKAGE.hash))))
    monkeypatch.setattr(steps.building["s0"], "submit", lambda *_given: (17, None))
    event = drive(steps.take(LifecycleOrder(Warm("s0", 1)))).event
    assert isinstance(event, Warmed)
    assert event.failure is not None
    assert (event.failure.stage, event.failure.fault) == ("warm", FaultClass.TRANSIENT)
    assert not steps.unended
