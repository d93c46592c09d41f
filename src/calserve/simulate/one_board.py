"""A run on one given board with the package it is served with, as a proof of two jobs in flight needs.

Owns: how a drawn run is moved to that board, and what its record may then say it proves. Must not know: what anybody
makes of the proof. Life: a choice is held against its board once (`doubt_about_choice`), before anything runs.

Everything else stays as the seed drew it: faults, crashes, traffic, pace, the rest of the server's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calserve.runtime.contract import Evidence
from calserve.runtime.sim import PROFILES, SimBoard, load_profile
from calserve.runtime.sim.profile import parse_profile, profile_text
from calserve.simulate.boards import board_parts, profile_of
from calserve.simulate.plan import ACTIVE_SHARE, PAIRS, BoardPlan, Era, RunPlan, ServerPlan, stream

CONCURRENT_JOBS = "concurrent_jobs"
BANKS = ("auto", "fixed")
# The served package's text is bytes, of which a character may take several: when a stop string is complete is then
# not told by the tokens alone, and the oracle tells everything from tokens.
_UNCHECKED_HABITS = ("stop_strings",)


@dataclass(frozen=True, slots=True)
class BoardChoice:
    """profile: by name or file. bank: "auto", "fixed", or "" for each in turn, era by era."""

    profile: str
    max_in_flight: int = 1
    bank: str = ""


def doubt_about_choice(choice: BoardChoice) -> str:
    """Why this board cannot be run so, as one sentence; "" when it can. Raises ProfileError."""
    if choice.max_in_flight not in (1, 2):
        return f"Jobs in flight are 1 or 2, not {choice.max_in_flight}."
    if choice.bank not in ("", *BANKS):
        return f"A bank is chosen {' or '.join(BANKS)}, not {choice.bank[:80]!r}."
    profile = load_profile(choice.profile)
    declared = profile.capabilities[CONCURRENT_JOBS]
    has_two = profile.max_in_flight > 1 and declared in (Evidence.C0, Evidence.C1)
    if choice.max_in_flight > 1 and not has_two:
        return (
            f"Board profile {profile.name} has no interface for {choice.max_in_flight} jobs in flight: "
            f"{CONCURRENT_JOBS} is {declared.name}, max_in_flight {profile.max_in_flight}."
        )
    if choice.max_in_flight > 1 and not profile.is_assumed:
        return f"Board profile {profile.name} is no assumed board; nothing can be taken as proven on it."
    return ""


def doubt_about_replay(plan: RunPlan, proof: Mapping[str, Any]) -> str:
    """Why a recorded run cannot be run again on its board, as one sentence; "" when it can. Raises ProfileError."""
    if not proof:
        return ""
    now = proof_of(plan)
    # a record of before the digest has none, and is held against what it has
    if all(now.get(name) == told for name, told in proof.items()):
        return ""
    (then_hash, then_figures), (now_hash, now_figures) = (
        (str(one.get("package_hash"))[:12], str(one.get("figures_sha256", "unknown"))[:12]) for one in (proof, now)
    )
    return (
        f"It ran package {then_hash} on {proof.get('versions')} with figures {then_figures}; board profile "
        f"{plan.eras[0].board.base} is now package {now_hash} on {now.get('versions')} with figures {now_figures}."
    )


def plan_on_board(plan: RunPlan, choice: BoardChoice) -> RunPlan:
    """The same run with every era on the chosen board, under the chosen number of jobs in flight.

    A profile from a file is read here, once, and goes into the plan: what becomes of the file is nothing to the run.
    """
    own = "" if choice.profile in PROFILES else profile_text(Path(choice.profile))
    profile = parse_profile(own, choice.profile) if own else PROFILES[choice.profile]
    has_two_calbins = 1 in profile.session_chips and min(profile.chips, profile.calbins_per_board) > 1
    board = BoardPlan(
        base=profile.name,
        context=profile.context,
        profiles=profile.profiles,
        sessions=profile.chips if has_two_calbins else 1,
        tile=profile.logits_tile,
        dtype=profile.logits_dtype,
        # what is to be proven must be used before it is
        assumes=(CONCURRENT_JOBS,) if choice.max_in_flight > 1 else (),
        is_served=True,
    )
    eras = plan.eras
    if profile.capabilities.get("chip_reset") is not Evidence.C0:  # a straggler was drawn where a reset stops it
        eras = tuple(replace(era, faults=replace(era.faults, listed=())) for era in eras)
    return replace(plan, eras=tuple(_era_on(era, board, choice, plan.seed) for era in eras), profile=own)


def _era_on(era: Era, board: BoardPlan, choice: BoardChoice, seed: int) -> Era:
    points = tuple(point for point in era.faults.points if point not in PAIRS)
    if choice.max_in_flight > 1:
        r = stream(seed, f"pairs/{era.number}")
        points += tuple(point for point in PAIRS if r.random() < ACTIVE_SHARE)
    habits = tuple(habit for habit in era.traffic.habits if habit not in _UNCHECKED_HABITS)
    return replace(
        era,
        board=board,
        server=_server_on(era.server, choice, era.number),
        faults=replace(era.faults, points=points),
        traffic=replace(era.traffic, habits=habits),
    )


def _server_on(server: ServerPlan, choice: BoardChoice, number: int) -> ServerPlan:
    is_fixed = choice.bank == "fixed" or (choice.bank == "" and number % 2 == 1)
    is_two = choice.max_in_flight > 1
    return replace(server, max_in_flight=choice.max_in_flight, fixed_engine=is_two and is_fixed)


def proof_of(plan: RunPlan) -> dict[str, Any]:
    """What a record of `plan` may say it ran on: profile and the digest of its figures, package_hash, versions,
    max_in_flight. Empty unless every era ran the served package of one board."""
    boards, limits = {era.board for era in plan.eras}, {era.server.max_in_flight for era in plan.eras}
    if len(boards) != 1 or not all(board.is_served and not board.cut for board in boards):
        return {}
    plan_of_it = boards.pop()
    # as the file has it: what the run takes as proven to use it is not what the board says of itself
    board = SimBoard(profile_of(plan_of_it.base, plan.profile))
    facts = board.describe()
    board.close()
    parts = board_parts(plan_of_it, plan.profile)
    return {
        "profile": parts.profile.name,
        "package_hash": parts.packages[0].hash,
        "versions": dict(facts.versions),
        "figures_sha256": facts.figures_sha256,
        "max_in_flight": min(limits),
    }
