"""The proof of two jobs in flight, on simulated boards: where it holds, and each check where it must not.

Expected speeds by hand, of the profile with 1.5 ms of DMA each way, 20 us of launch and 0.3 ms of host time: one in
flight takes 0.02 + 1.5 + 10 + 1.5 + 0.3 = 13.32 ms a token; with two the compute engine never rests: 10 ms a token.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from pingpong_rig import (
    LANES,
    CrossingSession,
    StallingSession,
    figures,
    one_row_package,
    passed,
    pingpong_profile,
    prove,
)

from calserve.accept.evidence import REQUIRED, SOAK_CHECK
from calserve.accept.pingpong import Report
from calserve.accept.soak_record import SoakProof
from calserve.runtime.contract import Evidence
from calserve.runtime.sim import Fault, FaultPlan, FaultPoint, sim_package


@pytest.fixture(scope="module")
def proven() -> Report:
    """The whole proof at its full length, with the soak."""
    profile = pingpong_profile()
    versions = {**profile.versions, "profile": profile.name}
    soak = SoakProof(
        "0123abc", profile.name, one_row_package(profile).hash, versions, 24.0, 2, "clean", profile.sha256()
    )
    return prove(profile, tokens=1000, repeats=2, soak=soak)


@pytest.mark.slow
def test_pingpong_where_it_pays_is_proven(proven: Report) -> None:
    assert proven.stopped == ""
    assert passed(proven) == dict.fromkeys((*REQUIRED, SOAK_CHECK), True)
    assert (proven.evidence.state, proven.evidence.missing) == ("C0", ())
    assert proven.evidence.simulated
    assert proven.evidence.figures_sha256 == pingpong_profile().sha256()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fixed", "auto"])
def test_pingpong_figures_are_those_of_the_profile(proven: Report, mode: str) -> None:
    assert figures(proven, f"correct_{mode}")["tokens_each"] >= 1000
    assert figures(proven, f"gain_{mode}")["ratio"] == pytest.approx(13.32 / 10, rel=0.01)
    assert figures(proven, f"gain_{mode}")["one_tokens_per_s"] == pytest.approx(1000 / 13.32, rel=0.001)
    assert figures(proven, f"tpot_{mode}")["two_p99_ns"] == pytest.approx(20_000_000, rel=0.01)
    assert figures(proven, f"tpot_{mode}")["one_p99_ns"] == pytest.approx(26_640_000, rel=0.001)


def test_correctness_with_too_few_tokens_is_not_proven() -> None:
    short = prove(pingpong_profile(), tokens=60)
    assert not passed(short)["correct_fixed"]
    assert figures(short, "correct_fixed")["wrong"] == 0
    assert short.evidence.state == "C1"


@pytest.mark.slow
def test_kv_crossed_between_two_jobs_is_seen() -> None:
    """Once among a thousand jobs: from there on both sequences are others."""
    report = prove(pingpong_profile(), spoil=CrossingSession, tokens=1000, steps=10)
    assert not passed(report)["correct_fixed"]
    assert figures(report, "correct_fixed")["wrong"] > 0
    assert "alone" in figures(report, "correct_fixed")["first_wrong"]
    assert figures(prove(pingpong_profile()), "correct_fixed")["wrong"] == 0


def test_banks_that_do_not_overlap_are_seen_in_the_trace() -> None:
    report = prove(pingpong_profile(banks_overlap=False))
    assert not passed(report)["overlap_fixed"]
    assert not passed(report)["overlap_auto"]
    assert set(figures(report, "overlap_fixed").values()) == {0.0}
    overlapping = figures(prove(pingpong_profile()), "overlap_fixed")
    assert overlapping["ping_share"] > 0.2
    assert overlapping["pong_share"] > 0.2


def test_gain_of_five_percent_is_not_enough() -> None:
    """0.02 + 0.1 + 10 + 0.1 + 0.3 = 10.52 ms against 10 ms."""
    report = prove(pingpong_profile(dma_ns=100_000))
    assert figures(report, "gain_fixed")["ratio"] == pytest.approx(1.052, abs=0.005)
    assert not passed(report)["gain_fixed"]
    assert passed(report)["tpot_fixed"]


def test_rare_stalls_with_two_in_flight_fail_the_99th_percentile() -> None:
    report = prove(pingpong_profile(), spoil=StallingSession, steps=200)
    assert passed(report)["gain_fixed"]
    assert not passed(report)["tpot_fixed"]


def test_one_job_of_all_rows_is_the_measure_where_lanes_are_proven() -> None:
    """The widest graph does in 17 ms what two jobs of half its rows do in 13 + 17: two in flight only lose."""
    report = prove(replace(LANES, context=256), package=sim_package(replace(LANES, context=256)))
    assert figures(report, "gain_auto")["one_is"] == "all rows in one job"
    assert figures(report, "gain_auto")["ratio"] < 0.7
    assert report.evidence.state == "C1"


def test_interface_that_nothing_proves_can_be_proven() -> None:
    states = MappingProxyType({**LANES.capabilities, "concurrent_jobs": Evidence.C1})
    report = prove(pingpong_profile(capabilities=states))
    assert report.stopped == ""
    assert passed(report)["gain_fixed"]


def test_board_that_refuses_two_jobs_leaves_everything_missing() -> None:
    states = MappingProxyType({**LANES.capabilities, "concurrent_jobs": Evidence.C2})
    report = prove(pingpong_profile(capabilities=states))
    assert "code 27" in report.stopped
    assert report.evidence.checks == ()
    assert report.evidence.missing == (*REQUIRED, SOAK_CHECK)
    assert report.evidence.state == "C1"


@pytest.mark.parametrize(
    ("point", "said"),
    [
        (FaultPoint.SUBMIT_BUSY, "code 17"),
        (FaultPoint.STATUS_CCU_EXCEPTION, "done_ccu_exception"),
        (FaultPoint.COMPLETION_DOUBLE, "names job"),
        (FaultPoint.LOGITS_NAN, "not finite"),
        (FaultPoint.OUTPUT_SHORT, "shape"),
        (FaultPoint.BUFFER_RESET_FAILS, "code 4"),
    ],
)
def test_step_that_fails_stops_the_proof(point: FaultPoint, said: str) -> None:
    report = prove(pingpong_profile(), faults=FaultPlan([Fault(point, at_visit=200)]), tokens=200)
    assert said in report.stopped
    assert report.evidence.state == "C1"


def test_package_with_one_lane_cannot_be_proven() -> None:
    profile = replace(pingpong_profile(), profiles=(1,))
    report = prove(profile, package=sim_package(profile))
    assert "need 2 lanes, the session has 1" in report.stopped
