"""Every reason to give up two jobs in flight, shown by the steps a server runs (seed 002, section 14).

Each time: what was submitted drains, every request ends once, jobs go one at a time from then on, and the snapshot and
`/metrics` say why.
"""

from __future__ import annotations

import pytest
from two_in_flight_rig import Two, two_in_flight

from calserve.core.concurrency import WINDOW, Doubt
from calserve.core.config import SchedulerConfig
from calserve.core.events import Load
from calserve.core.outcomes import FinishReason
from calserve.runtime.sim import Fault, FaultPoint
from calserve.runtime.sim.job import Job

LENGTH = FinishReason.LENGTH
FAULT = FinishReason.DEVICE_FAULT


def assert_lowered(two: Two, reason: str) -> None:
    two.run_to_the_end()
    view = two.view
    assert (view.max_in_flight, view.downgrade_reason) == (1, reason)
    assert two.counters[f"downgrades_{reason}"] == 1
    assert two.late_pairs == []
    assert not two.rig.jobs
    page = two.metrics()
    assert 'calserve_max_jobs_in_flight{model_name="m"} 1.0' in page
    assert f'calserve_in_flight_lowered{{model_name="m",reason="{reason}"}} 1.0' in page
    assert page.count('calserve_in_flight_lowered{model_name="m"') == len(Doubt)


def test_two_in_flight_without_a_doubt_stay_two_and_every_token_is_right() -> None:
    with two_in_flight() as two:
        two.submit_all(30)
        two.run_to_the_end()
        assert two.assert_ended_once_and_right() == {LENGTH}
        assert (two.view.max_in_flight, two.view.downgrade_reason) == (2, "")
        assert 'calserve_max_jobs_in_flight{model_name="m"} 2.0' in two.metrics()
        assert 'calserve_in_flight_lowered{model_name="m",reason="latency"} 0.0' in two.metrics()


def test_two_in_flight_without_evidence_fail_the_load_by_the_capabilitys_name() -> None:
    with pytest.raises(AssertionError, match="concurrent_jobs"), two_in_flight(proof=""):
        pass


def test_completions_swapped_between_two_jobs_lower_to_one_as_cross_talk() -> None:
    """Both are done when the first is waited for, and each is told as the other."""
    with two_in_flight(Fault(FaultPoint.COMPLETION_SWAPPED, at_visit=1)) as two:
        two.submit_all(30)
        two.run_until_two()
        two.device.clock.advance(50_000_000)  # type: ignore[attr-defined]
        assert_lowered(two, "cross_talk")
        assert FAULT in two.assert_ended_once_and_right()
        assert two.view.generation == 2


def test_bad_status_of_a_job_with_company_lowers_to_one() -> None:
    with two_in_flight(Fault(FaultPoint.STATUS_CCU_EXCEPTION, at_visit=20)) as two:
        two.submit_all(30)
        assert_lowered(two, "status")
        assert FAULT in two.assert_ended_once_and_right()


def test_output_that_cannot_be_of_a_job_with_company_lowers_to_one() -> None:
    with two_in_flight(Fault(FaultPoint.LOGITS_NAN, at_visit=20)) as two:
        two.submit_all(30)
        assert_lowered(two, "output")
        two.assert_ended_once_and_right()


def test_counters_that_do_not_close_lower_to_one_and_nobody_is_lost() -> None:
    with two_in_flight(Fault(FaultPoint.COUNTERS_WRONG, at_visit=1)) as two:
        two.submit_all(30)
        two.run_to_the_end()
        assert two.assert_ended_once_and_right() == {LENGTH}
        assert_lowered(two, "counters")


def test_board_that_is_busy_again_and_again_lowers_to_one_and_nobody_is_lost() -> None:
    with two_in_flight(Fault(FaultPoint.SUBMIT_BUSY, at_visit=20, times=3)) as two:
        two.submit_all(30)
        assert_lowered(two, "refusals")
        assert two.assert_ended_once_and_right() == {LENGTH}


def test_board_that_is_busy_twice_is_no_reason() -> None:
    with two_in_flight(Fault(FaultPoint.SUBMIT_BUSY, at_visit=20, times=2)) as two:
        two.submit_all(30)
        two.run_to_the_end()
        assert (two.view.max_in_flight, two.view.downgrade_reason) == (2, "")


def test_job_that_never_comes_back_lowers_to_one_for_every_generation_after_it() -> None:
    config = SchedulerConfig(max_in_flight=2, execution_deadline_floor_ns=200_000_000, overdue_grace_ns=100_000_000)
    with two_in_flight(Fault(FaultPoint.JOB_NEVER_COMPLETES, at_visit=20), config=config) as two:
        two.submit_all(30)
        assert_lowered(two, "recovery")
        two.assert_ended_once_and_right()
        assert two.view.generation == 2


def test_second_job_the_board_does_not_support_lowers_to_one_and_nobody_is_lost() -> None:
    with two_in_flight(Fault(FaultPoint.SUBMIT_UNSUPPORTED, at_visit=20)) as two:
        two.submit_all(30)
        assert_lowered(two, "unsupported")
        assert two.assert_ended_once_and_right() == {LENGTH}


def slow_with_company(two: Two, percent: int) -> None:
    """The device computes a job that has company `percent` longer."""
    engine = two.device.engine
    plain = engine._compute_ns

    def compute_ns(job: Job) -> int:
        took = plain(job)
        return took * (100 + percent) // 100 if len(engine.running) > 1 else took

    engine._compute_ns = compute_ns  # type: ignore[method-assign]


@pytest.mark.parametrize(("percent", "reason"), [(12, "latency"), (3, "")])
def test_device_that_is_slower_with_company_lowers_to_one_beyond_five_percent(percent: int, reason: str) -> None:
    """A verdict comes after every `WINDOW` jobs with company; eight requests of so many tokens are more than that."""
    with two_in_flight() as two:
        slow_with_company(two, percent)
        two.submit_all(WINDOW // 2 + 40)
        if reason:
            assert_lowered(two, reason)
        else:
            two.run_to_the_end()
            assert (two.view.max_in_flight, two.view.downgrade_reason) == (2, "")
        assert two.assert_ended_once_and_right() == {LENGTH}


def test_job_that_is_out_when_two_are_given_up_comes_home_and_its_tokens_count() -> None:
    """The board refuses the second of two jobs for good: the first one's rows have one token more from it."""
    with two_in_flight(Fault(FaultPoint.SUBMIT_UNSUPPORTED, at_visit=20)) as two:
        two.submit_all(30)
        while not two.view.downgrade_reason:
            assert two.step()
        (out,) = two.rig.jobs
        names = [row.request for row in out.spec.rows]
        before = {name: len(two.rig.outlet.told[name].tokens) for name in names}
        while out in two.rig.jobs:
            assert two.step()
        assert {name: len(two.rig.outlet.told[name].tokens) for name in names} == {n: c + 1 for n, c in before.items()}
        two.run_to_the_end()
        assert two.assert_ended_once_and_right() == {LENGTH}


def test_operator_who_loads_the_package_anew_has_two_again() -> None:
    with two_in_flight(Fault(FaultPoint.SUBMIT_UNSUPPORTED, at_visit=20)) as two:
        two.submit_all(30)
        assert_lowered(two, "unsupported")
        two.rig.post(Load("s0", "m", two.rig.package.hash))
        two.run_to_the_end()
        assert (two.view.max_in_flight, two.view.downgrade_reason) == (2, "")
