"""Planted faults that only a look at the board's own account shows: what it refuses, keeps, or never did."""

from dataclasses import replace

from soak_oracle_rig import MS, WORLD, History, ask

from calserve.runtime.sim.facts import FactKind

PLAIN = replace(WORLD, is_trouble_visible=True, job_bound_ns=500 * MS)


def serving(**changes: object) -> History:
    history = History(replace(PLAIN, **changes))  # type: ignore[arg-type]
    history.submit(ask())
    return history.at(20)


# --- host memory --------------------------------------------------------------------------------------------


def test_memory_that_a_job_holds_submitted_again_is_found() -> None:
    history = serving()
    history.fact(FactKind.HELD)
    assert history.found == ["I4"]
    assert "memory that a job still holds" in history.say()


# --- jobs without end ---------------------------------------------------------------------------------------


def test_job_out_for_longer_than_its_bound_on_a_session_that_serves_is_found_once() -> None:
    history = serving()
    history.put(history.row("r1", 0))
    history.oracle.check(520 * MS)
    assert history.found == []
    history.oracle.check(521 * MS)
    history.oracle.check(522 * MS)
    assert history.found == ["I11"]
    assert "ticket 1 is out since" in history.say()


def test_job_out_for_long_on_a_session_that_drains_is_its_drains_to_judge() -> None:
    history = serving()
    history.put(history.row("r1", 0))
    history.state("draining")
    history.oracle.check(600 * MS)
    assert history.found == []


def test_job_out_for_long_is_not_judged_without_a_bound() -> None:
    history = serving(job_bound_ns=0)
    history.put(history.row("r1", 0))
    history.oracle.check(50_000 * MS)
    assert history.found == []


# --- trouble that nobody made -------------------------------------------------------------------------------


def test_recovery_where_nothing_ever_went_wrong_is_found() -> None:
    history = serving()
    history.state("recovering")
    assert history.found == ["I7"]
    assert "nothing ever went wrong" in history.say()


def test_recovery_after_a_fault_a_reset_or_a_crash_is_not_found() -> None:
    for kind in (FactKind.FAULT, FactKind.RESET, FactKind.HOST_ENDED):
        history = serving()
        history.fact(kind)
        history.state("recovering")
        assert history.found == [], kind


def test_recovery_is_not_judged_where_trouble_does_not_show() -> None:
    history = serving(is_trouble_visible=False)
    history.state("recovering")
    assert history.found == []


def test_end_for_an_output_that_the_device_never_spoiled_is_found() -> None:
    history = serving()
    history.fact(FactKind.FAULT, detail="completion_double")
    history.run(history.row("r1", 0))
    history.end("r1", "internal", 0, "output 0")
    assert history.found == ["I10"]
    assert "the device spoiled none" in history.say()


def test_end_for_an_output_that_the_device_spoiled_is_not_found() -> None:
    for point in ("logits_nan", "logits_inf", "output_short"):
        history = serving()
        history.fact(FactKind.FAULT, detail=point)
        history.run(history.row("r1", 0))
        history.end("r1", "internal", 0, "output 0")
        assert history.found == [], point


def test_process_that_dies_with_a_job_of_one_copy_out_leaves_nobody_who_could_have_run_on_the_other() -> None:
    """Who ran there waits only from that instant on: the other copy stood idle for nobody."""
    history = History(replace(WORLD, sessions={"s0": "m", "s1": "m"}))
    history.oracle.session_state("s1", 2, "ready", 0)
    history.submit(ask())
    history.at(20).put(history.row("r1", 0))
    history.at(5_000).fact(FactKind.HOST_ENDED)
    history.oracle.process_ended(history.now, -9)
    assert history.found == [], history.say()
