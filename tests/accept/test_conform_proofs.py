"""Each proof: where it holds, and a board that breaks what it proves.

The simulated model's logits depend on every token and position a lane holds (`runtime/sim/oracle.py`), so a board that
mixes anything up gives other logits. Each wrapper in `conform_rig` breaks one promise; the unbroken board passes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conform_rig import (
    CancelsNothing,
    ClosesAnyTime,
    CrossWrites,
    ForgetsThePast,
    IgnoresTrims,
    LongMirror,
    Misnamed,
    MovesMemory,
    Raises,
    ReadsStale,
    ScrubsNothing,
    SharesByNameOnly,
    ShiftsDecodes,
    SpoiledBoard,
    SwapsTwoRows,
    TakesAnything,
    WritesInactive,
    WrongLane,
    claiming,
    conform,
    prove,
    rig_of,
    rig_on,
    small,
)

from calserve.accept.conform.lanes import lane_sets
from calserve.accept.conform.prompts import cuts_of, lengths_of
from calserve.accept.conform.proofs import BY_ID, OF, PROOFS
from calserve.core.commands import ResetScope
from calserve.runtime.contract import CAPABILITIES, Evidence
from calserve.runtime.sim import SimBoard, VirtualClock, sim_package

HELD = (
    "jobs", "buffers", "configure", "goldens", "prompt_lengths", "context_limit", "alternating", "kv_reuse",
    "refused_submit", "unload", "observation", "reset_scopes", "siblings", "batch_lanes", "inactive_lanes",
    "incremental_prefill", "kv_trim", "concurrent_chips", "chip_reset", "session_reset", "resident_profiles",
)  # fmt: skip
ABSENT = ("mixed_batch", "kv_share", "job_cancel", "multi_package")
UNASKABLE = ("kv_copy", "kv_shift", "kv_state", "lane_fault_isolation", "calcore_affinity")


@pytest.mark.parametrize("proof_id", HELD)
def test_proof_on_a_board_that_keeps_its_promise_passes(proof_id: str) -> None:
    seen = prove(proof_id, rig_of(small()))
    assert (seen.verdict, bool(seen.sentence)) == ("passed", True), seen.sentence


@pytest.mark.parametrize("proof_id", ABSENT)
def test_proof_of_what_the_board_does_not_offer_says_so_with_its_code(proof_id: str) -> None:
    assert prove(proof_id, rig_of(small())).verdict == "not_supported"


@pytest.mark.parametrize("proof_id", UNASKABLE)
def test_proof_that_the_contract_has_no_call_for_is_not_run_and_says_why(proof_id: str) -> None:
    seen = prove(proof_id, rig_of(small()))
    assert seen.verdict == "not_run"
    assert "the contract has no call" in seen.sentence


@pytest.mark.parametrize(
    ("proof_id", "spoil", "said"),
    [
        ("jobs", Misnamed, "names job"),
        ("batch_lanes", SwapsTwoRows, "of lanes"),
        ("inactive_lanes", WritesInactive, "after jobs without it"),
        ("incremental_prefill", ForgetsThePast, "pieces"),
        ("alternating", WrongLane, "differ"),
        ("batch_lanes", WrongLane, "differ"),
        ("refused_submit", TakesAnything, "another generation"),
        ("unload", ClosesAnyTime, "closes while a job"),
        ("context_limit", LongMirror, "mirror takes"),
        ("job_cancel", CancelsNothing, "does not end"),
        ("prompt_lengths", Raises, "KeyError"),
        ("prompt_lengths", ShiftsDecodes, "prompt of 2"),
        ("buffers", ScrubsNothing, "holds data of a job"),
        ("buffers", MovesMemory, "moved"),
        ("kv_reuse", ReadsStale, "the prompt"),
        ("concurrent_chips", CrossWrites, "with work on the other"),
        ("kv_trim", IgnoresTrims, "the token after"),
        ("kv_share", SharesByNameOnly, "second lane"),
        ("resident_profiles", SwapsTwoRows, "profile B4"),
    ],
)
def test_proof_on_a_board_that_breaks_its_promise_fails_with_a_sentence(proof_id: str, spoil: Any, said: str) -> None:
    seen = prove(proof_id, rig_of(small(), spoil))
    assert seen.verdict == "failed"
    assert said in seen.sentence
    assert "\n" not in seen.sentence


class CountsWrong(SpoiledBoard):
    """Two jobs are always left."""

    def counters(self) -> Any:
        return replace(self._board.counters(), left=2)


class ResetsEverything(SpoiledBoard):
    """A reset of a session takes the other chip's session along."""

    def reset(self, scope: ResetScope, session: str | None) -> Any:
        if scope is ResetScope.SESSION:
            return self._board.reset(ResetScope.CONFIGURATION, None)
        return self._board.reset(scope, session)


class ResetsNothing(SpoiledBoard):
    """Says that a reset went well, and does not do it."""

    def reset(self, scope: ResetScope, session: str | None) -> Any:
        return 0 if scope in (ResetScope.SESSION, ResetScope.CHIP) else self._board.reset(scope, session)


class TakesAnyQuota(SpoiledBoard):
    def configure(self, package: Any, options: Any, name: str, generation: int) -> Any:
        return self._board.configure(package, replace(options, dram_quota=0), name, generation)


class HidesTheOtherChip(SpoiledBoard):
    """A second package for the first one's chip goes to the other, which is how a board might hold two."""

    def configure(self, package: Any, options: Any, name: str, generation: int) -> Any:
        code, session = self._board.configure(package, options, name, generation)
        if code == 7:
            return self._board.configure(package, replace(options, chips=(1,)), name, generation)
        return code, session


class SpoilsTheOther(HidesTheOtherChip):
    """Configuring beside another session writes into its KV."""

    def configure(self, package: Any, options: Any, name: str, generation: int) -> Any:
        code, session = super().configure(package, options, name, generation)
        if name in ("chip1", "second"):
            self._board.device.engine.lane((0,), 0).write(0, [(1, 0)])
        return code, session


class ShowsNothing(SpoiledBoard):
    def trace(self, since_ns: int) -> Any:
        return ()


class ReadsZero(SpoiledBoard):
    """A temperature nobody can read is 0."""

    def telemetry(self, chip: int) -> Any:
        return replace(self._board.telemetry(chip), temperature_c=0.0)


@pytest.mark.parametrize(
    ("proof_id", "kind", "said"),
    [
        ("jobs", CountsWrong, "2 left"),
        ("session_reset", ResetsEverything, "other chip is gone"),
        ("session_reset", ResetsNothing, "still there"),
        ("chip_reset", ResetsNothing, "still there"),
        ("configure", TakesAnyQuota, "quota of one byte"),
        ("observation", ShowsNothing, "no span"),
        ("observation", ReadsZero, "reads 0 for temperature_c"),
        ("reset_scopes", ResetsEverything, "scope session"),
        ("siblings", SpoilsTheOther, "after the other chip was configured"),
        ("multi_package", SpoilsTheOther, "first after"),
        ("concurrent_chips", ShowsNothing, "no compute of both chips at once"),
    ],
)
def test_proof_on_a_board_that_says_what_is_not_so_fails(proof_id: str, kind: Any, said: str) -> None:
    profile, clock = small(), VirtualClock()
    board = kind(SimBoard(profile, clock=clock), lambda session: session)
    seen = prove(proof_id, rig_on(board, sim_package(profile), clock))
    assert seen.verdict == "failed"
    assert said in seen.sentence


def test_goldens_with_one_wrong_token_fail() -> None:
    package = sim_package(small())
    first = package.goldens[0]
    wrong = replace(first, output_ids=((first.output_ids[0] + 1) % package.vocab_size, *first.output_ids[1:]))
    seen = prove("goldens", rig_of(small(), package=replace(package, goldens=(wrong, *package.goldens[1:]))))
    assert seen.verdict == "failed"
    assert "golden" in seen.sentence


def test_chips_that_take_turns_are_not_concurrent() -> None:
    seen = prove("concurrent_chips", rig_of(small(chips_overlap=False, banks_overlap=False)))
    assert seen.verdict == "failed"
    assert "the trace shows no compute of both chips at once" in seen.sentence


def test_chips_overlap_ratio_of_two_equal_sides_is_a_half() -> None:
    """By hand: each side alone takes T, both together T, so 1 - T / 2T, less what the one host adds to each job."""
    seen = prove("concurrent_chips", rig_of(small()))
    assert float(seen.figures["prefill_prefill_overlap"]) == pytest.approx(0.5, abs=0.03)
    assert float(seen.figures["prefill_prefill_efficiency"]) == pytest.approx(1.0, abs=0.06)


def test_capability_that_is_claimed_and_refused_fails() -> None:
    """The profile says that pieces of a prompt are proven; the session refuses the second one."""
    rig = rig_of(small(capabilities=small().capabilities))
    rig.facts = claimed_facts(rig, "mixed_batch")
    seen = prove("mixed_batch", rig)
    assert seen.verdict == "failed"
    assert "the board says that mixed_batch is proven, but no graph" in seen.sentence


def claimed_facts(rig: Any, capability: str) -> Any:
    return replace(rig.facts, capabilities={**rig.facts.capabilities, capability: Evidence.C0})


def test_two_packages_that_do_not_see_each_other_are_proven() -> None:
    profile, clock = small(), VirtualClock()
    board: Any = HidesTheOtherChip(SimBoard(profile, clock=clock), lambda session: session)
    assert prove("multi_package", rig_on(board, sim_package(profile), clock)).verdict == "passed"


def test_board_of_the_specification_proves_what_batch_one_can_and_claims_nothing() -> None:
    record = conform(small("calculet-2chip"))
    assert record.broken == ()
    assert record.unproven_claims == ()
    states = {each.name: each.state for each in record.capabilities}
    assert states["concurrent_jobs"] == "C1"
    assert {states[name] for name in ("batch_lanes", "incremental_prefill", "concurrent_chips", "chip_reset")} == {"C3"}
    assert (states["mixed_batch"], states["calcore_affinity"]) == ("C4", "C4")


def test_board_that_breaks_lanes_loses_that_capability_and_no_other() -> None:
    record = conform(small(), SwapsTwoRows)
    states = {each.name: each.state for each in record.capabilities}
    assert states["batch_lanes"] == states["resident_profiles"] == "C1"
    assert states["incremental_prefill"] == states["session_reset"] == "C0"
    assert {"batch_lanes", "resident_profiles"} <= {each.name for each in record.unproven_claims}


class RaisesEverywhere(SpoiledBoard):
    def configure(self, *asked: Any) -> Any:
        raise OSError("the driver is gone")

    def reset(self, *asked: Any) -> Any:
        raise OSError("the driver is gone")


def test_board_that_raises_in_configure_and_reset_ends_as_failures_and_not_as_an_exception() -> None:
    profile, clock = small(), VirtualClock()
    rig = rig_on(RaisesEverywhere(SimBoard(profile, clock=clock), lambda session: session), sim_package(profile), clock)
    for proof_id in ("jobs", "session_reset", "concurrent_jobs", "multi_package"):
        seen = prove(proof_id, rig)
        assert (seen.verdict, "the driver is gone" in seen.sentence) == ("failed", True)


def test_board_that_raises_is_told_as_a_failure_of_each_proof() -> None:
    record = conform(small("calculet-2chip"), Raises)
    assert "jobs" in {proof.id for proof in record.broken}
    assert all("KeyError" in proof.sentence for proof in record.broken if proof.id in ("jobs", "prompt_lengths"))


def test_declared_capability_is_raised_by_a_proof_that_passes() -> None:
    record = conform(claiming(small("assumed-pingpong"), batch_lanes=Evidence.C0, resident_profiles=Evidence.C1))
    state = {each.name: (each.declared, each.state) for each in record.capabilities}
    assert state["resident_profiles"] == ("C1", "C0")


def test_every_capability_has_a_proof_and_every_id_stands_once() -> None:
    assert set(OF) == set(CAPABILITIES)
    assert all(OF.values())
    assert len(BY_ID) == len(PROOFS)


def test_lengths_are_the_issues_that_the_context_has_room_for() -> None:
    assert lengths_of(40_960) == [1, 2, 15, 16, 17, 127, 128, 1024, 4095, 4096, 40_959, 40_960]
    assert lengths_of(512) == [1, 2, 15, 16, 17, 127, 128, 511, 512]


def test_lane_sets_have_every_count_every_hole_and_both_ends() -> None:
    sets = lane_sets(4)
    assert {(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)} <= set(sets)
    assert {(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 3), (3,), (0, 2), (1, 3)} <= set(sets)


@pytest.mark.parametrize(("length", "least"), [(2, 1), (3, 2), (4, 2), (17, 1), (17, 2), (128, 2), (1024, 2)])
def test_cuts_cover_the_prompt_and_no_piece_is_too_short(length: int, least: int) -> None:
    cuts = cuts_of(length, least)
    assert (cuts == []) is (length < 2 * least)
    for cut in cuts:
        assert sum(cut) == length
        assert min(cut) >= least
        assert len(cut) > 1
