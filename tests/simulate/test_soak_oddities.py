"""A board that breaks its contract, and packages that must not serve: what the soak shows the server of both."""

from __future__ import annotations

import pytest
from sim_rig import SECOND, SMALL, row_of

from calserve.core.commands import ResetScope
from calserve.core.job import Bank, JobSpec, Task
from calserve.core.outcomes import Failure
from calserve.runtime.contract import BoardPackage, HostBuffers, LoadOptions
from calserve.runtime.sim import SimDevice, VirtualClock, sim_package
from calserve.runtime.sim.facts import DeviceFact, FactKind
from calserve.simulate.bad_packages import BAD_PACKAGES
from calserve.simulate.boards import board_parts
from calserve.simulate.oddities import ODDITIES, DriverError, OddBoard, Oddities, OddSession
from calserve.simulate.plan import BoardPlan

ALWAYS = 1e9  # so much more often than usual that it shows on every visit or every other


def odd_session(*names: str, generation: int = 1) -> tuple[OddSession, Oddities, list[DeviceFact]]:
    facts: list[DeviceFact] = []
    device = SimDevice(SMALL, VirtualClock())
    device.listener = facts.append
    oddities = Oddities(names, 1, ALWAYS)
    code, session = OddBoard(device, oddities).configure(sim_package(SMALL), LoadOptions(chips=(0,)), "s", generation)
    assert code == 0
    assert isinstance(session, OddSession)
    return session, oddities, facts


def test_oddity_shows_by_its_own_stream_and_never_after_healing() -> None:
    def visits(*names: str) -> list[bool]:
        oddities = Oddities(names, 7, 100)
        return [oddities.shows("release_refused") for _ in range(100)]

    alone = visits("release_refused")
    assert 0 < sum(alone) < 100
    assert alone == visits("output_flat", "release_refused")
    assert not any(visits("output_flat"))
    healed = Oddities(tuple(ODDITIES), 7, ALWAYS)
    healed.heal()
    assert not any(healed.shows(name) for name in ODDITIES)


def test_release_that_is_odd_is_refused_and_the_device_tells_that_something_is_wrong() -> None:
    session, oddities, facts = odd_session("release_refused")
    assert session.kv.apply(0, (0,), 1) == 0
    codes = [session.kv.release(0) for _ in range(4)]
    assert set(codes) <= {0, 4}
    assert codes.count(4) == oddities.fired["release_refused"] > 0
    told = [fact.detail for fact in facts if fact.kind is FactKind.FAULT]
    assert told == ["release_refused"] * codes.count(4)


def test_output_that_is_padded_has_the_right_logits_in_front_and_is_no_fault() -> None:
    session, oddities, facts = odd_session("output_padded")
    _, buffers = session.allocate("decode_b4", Bank.PING)
    assert buffers is not None
    shapes = {buffers.output("logits").shape for _ in range(20)}
    assert shapes == {(4, 64), (4, 69)}
    assert oddities.fired["output_padded"] > 0
    assert FactKind.FAULT not in {fact.kind for fact in facts}


def test_job_submitted_with_odd_buffers_runs_on_the_devices_own() -> None:
    session, _, _ = odd_session("output_flat")
    code, ticket = session.submit(*bound_job(session, 1))
    assert code == 0
    assert ticket is not None
    code, status = session.wait(ticket, SECOND)
    assert code == 0
    assert status is not None


def bound_job(session: OddSession, job: int) -> tuple[JobSpec, HostBuffers]:
    """A decode of one token on lane 0, ready to be submitted."""
    _, buffers = session.allocate("decode_b1", Bank.PING)
    assert buffers is not None
    for name in ("tokens", "positions", "logits"):
        assert buffers.map(name) == 0
    assert buffers.set_csr("current_sequence_length", 0) == buffers.set_csr("total_sequence_length", 1) == 0
    return JobSpec(job, 1, "s", "decode_b1", Task.DECODE, Bank.PING, SECOND, (row_of(0, 0, 1),)), buffers


def kinds_of(facts: list[DeviceFact]) -> list[FactKind]:
    return [fact.kind for fact in facts]


@pytest.mark.parametrize("name", ["session_missing", "configure_raises", "session_with_code"])
def test_configure_that_is_odd_has_configured_the_device(name: str) -> None:
    facts: list[DeviceFact] = []
    device = SimDevice(SMALL, VirtualClock())
    device.listener = facts.append
    board, raised, answers = OddBoard(device, Oddities((name,), 1, ALWAYS)), 0, []
    for generation in range(1, 20):
        try:
            code, session = board.configure(sim_package(SMALL), LoadOptions(chips=(0,)), "s", generation)
            answers.append((code, session is not None))
        except DriverError:
            raised += 1
        assert kinds_of(facts)[-1] in (FactKind.CONFIGURED, FactKind.FAULT)
        assert len(device.calbins) == 1
        assert board.reset(ResetScope.BOARD, None) == 0
    assert (raised > 0) == (name == "configure_raises")
    odd = {"session_missing": (0, False), "configure_raises": None, "session_with_code": (25, True)}[name]
    assert set(answers) == {(0, True), odd} - {None}
    assert raised or answers.count(odd) < len(answers)


def test_allocate_that_is_odd_succeeds_without_buffers() -> None:
    session, oddities, _ = odd_session("buffers_missing")
    answers = [session.allocate("decode_b1", Bank.PING) for _ in range(200)]
    assert {code for code, _ in answers} == {0}
    assert [buffers for _, buffers in answers].count(None) == oddities.fired["buffers_missing"] > 0


def test_submit_without_a_ticket_runs_on_the_device_every_other_time() -> None:
    session, oddities, facts = odd_session("ticket_missing")
    ran = []
    while oddities.fired.get("ticket_missing", 0) < 4:
        told = oddities.fired.get("ticket_missing", 0)
        spec, buffers = bound_job(session, 1)
        before = kinds_of(facts).count(FactKind.SUBMITTED)
        code, ticket = session.submit(spec, buffers)
        assert code == 0
        if oddities.fired.get("ticket_missing", 0) > told:
            assert ticket is None
            ran.append(kinds_of(facts).count(FactKind.SUBMITTED) - before)
        session.drain(SECOND)
    assert ran == [1, 0, 1, 0]


def test_ticket_with_a_code_is_of_a_job_that_the_device_runs() -> None:
    session, oddities, facts = odd_session("ticket_with_code")
    codes = []
    while len(codes) < 3:
        spec, buffers = bound_job(session, 1)
        code, ticket = session.submit(spec, buffers)
        assert ticket is not None
        assert [fact.ticket for fact in facts if fact.kind is FactKind.SUBMITTED][-1] == ticket.number
        if code:
            codes.append(int(code))
        session.drain(SECOND)
    assert sorted(codes) == [4, 13, 17]
    assert oddities.fired["ticket_with_code"] == 3


@pytest.mark.parametrize("name", ["submit_raises", "wait_raises"])
def test_call_breaks_off_in_a_warm_up_alone_and_the_device_runs_the_job(name: str) -> None:
    session, oddities, facts = odd_session(name)
    while not oddities.fired.get(name):
        spec, buffers = bound_job(session, -1)
        try:
            _, ticket = session.submit(spec, buffers)
            assert ticket is not None
            if oddities.fired.get(name):
                assert session.is_ready(ticket)
                assert FactKind.RETIRED not in kinds_of(facts)[kinds_of(facts).index(FactKind.FAULT) :]
            session.wait(ticket, SECOND)
        except DriverError:
            break
        session.drain(SECOND)
    submits = kinds_of(facts).count(FactKind.SUBMITTED)
    assert submits == kinds_of(facts).count(FactKind.RETIRED) + 1
    session.drain(SECOND)
    assert submits == kinds_of(facts).count(FactKind.RETIRED)
    for _ in range(1000):
        session.submit(*bound_job(session, 1))
        session.drain(SECOND)
    assert oddities.fired == {name: 1}


def test_package_that_cannot_be_read_breaks_its_reader() -> None:
    with pytest.raises(OSError, match="could not be read"):
        board_parts(BoardPlan()).open_package("bad: a file that breaks off")


@pytest.mark.parametrize("wanted", [name for name in BAD_PACKAGES if name != "bad: a file that breaks off"])
def test_bad_package_is_another_than_the_good_one_or_is_not_there(wanted: str) -> None:
    parts = board_parts(BoardPlan())
    good = parts.packages[0]
    bad = parts.open_package(wanted)
    if wanted == "bad: no such package":
        assert isinstance(bad, Failure)
        return
    assert isinstance(bad, BoardPackage)
    assert bad.hash == wanted
    assert (bad.graphs, bad.goldens, bad.board) != (good.graphs, good.goldens, good.board)
