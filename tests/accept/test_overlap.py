"""Overlap read from traces written by hand."""

from __future__ import annotations

from calserve.accept.overlap import measure_overlap
from calserve.core.job import Bank
from calserve.runtime.contract import TraceSpan

PING, PONG = Bank.PING, Bank.PONG
ASKED = {1: PING, 2: PONG}


def span(job: int, begin: int, end: int, chip: int = 0, phase: str = "compute", bank: Bank = Bank.AUTO) -> TraceSpan:
    return TraceSpan(chip, job, phase, begin, end, bank=bank)


def test_overlap_is_the_share_of_a_banks_own_time() -> None:
    """PING works 0..10, PONG 8..28: 2 of 10 and 2 of 20."""
    chip = measure_overlap([span(1, 0, 10), span(2, 8, 28)], ASKED)[0]
    assert (chip.share(PING), chip.share(PONG)) == (0.2, 0.1)


def test_overlap_of_phases_that_only_touch_is_none() -> None:
    chip = measure_overlap([span(1, 0, 10), span(2, 10, 20)], ASKED)[0]
    assert (chip.share(PING), chip.share(PONG)) == (0.0, 0.0)


def test_overlap_does_not_count_a_job_that_waits_between_its_phases() -> None:
    """PONG moved its input at 0..2 and waits for the engine until 10: only the two count."""
    trace = [span(1, 0, 10), span(2, 0, 2, phase="h2d"), span(2, 10, 20)]
    assert measure_overlap(trace, ASKED)[0].share(PONG) == 2 / 12


def test_overlap_of_one_job_on_two_cores_is_none() -> None:
    trace = [TraceSpan(0, 1, "compute", 0, 10, core=core) for core in (0, 1)]
    assert measure_overlap(trace, ASKED)[0].share(PING) == 0.0


def test_overlap_is_told_by_chip() -> None:
    """Two jobs at once on different chips share nothing."""
    chips = measure_overlap([span(1, 0, 10, chip=0), span(2, 0, 10, chip=1)], ASKED)
    assert (chips[0].share(PING), chips[1].share(PONG)) == (0.0, 0.0)


def test_overlap_takes_the_bank_that_the_board_names() -> None:
    trace = [span(1, 0, 10, bank=PONG), span(2, 5, 10, bank=PING)]
    chip = measure_overlap(trace, {1: Bank.AUTO, 2: Bank.AUTO})[0]
    assert (chip.share(PONG), chip.share(PING)) == (0.5, 1.0)


def test_overlap_leaves_out_jobs_nobody_asked_about() -> None:
    chip = measure_overlap([span(1, 0, 10), span(9, 0, 10)], ASKED)[0]
    assert chip.share(PING) == 0.0
