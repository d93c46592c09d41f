"""A board that breaks its contract, and packages that must not serve: what the soak shows the server of both."""

from __future__ import annotations

import pytest
from sim_rig import SECOND, SMALL, row_of

from calserve.core.job import Bank, JobSpec, Task
from calserve.core.outcomes import Failure
from calserve.runtime.contract import BoardPackage, LoadOptions
from calserve.runtime.sim import SimDevice, VirtualClock, sim_package
from calserve.runtime.sim.facts import DeviceFact, FactKind
from calserve.simulate.bad_packages import BAD_PACKAGES
from calserve.simulate.boards import board_parts
from calserve.simulate.oddities import ODDITIES, OddBoard, Oddities, OddSession
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
    _, buffers = session.allocate("decode_b1", Bank.PING)
    assert buffers is not None
    for name in ("tokens", "positions", "logits"):
        assert buffers.map(name) == 0
    assert buffers.set_csr("current_sequence_length", 0) == buffers.set_csr("total_sequence_length", 1) == 0
    spec = JobSpec(1, 1, "s", "decode_b1", Task.DECODE, Bank.PING, SECOND, (row_of(0, 0, 1),))
    code, ticket = session.submit(spec, buffers)
    assert code == 0
    assert ticket is not None
    code, status = session.wait(ticket, SECOND)
    assert code == 0
    assert status is not None


@pytest.mark.parametrize("wanted", BAD_PACKAGES)
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
