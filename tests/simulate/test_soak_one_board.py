"""A soak on one given board: what it runs, what its record may say, and what it refuses."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calserve.accept.evidence import SOAK_CHECK
from calserve.accept.soak_record import check_soak, load_soak
from calserve.cli.app import app
from calserve.cli.boards import BoardFlags, chosen_board
from calserve.progress import SilentProgress
from calserve.runtime.sim import figures
from calserve.simulate.boards import board_parts
from calserve.simulate.one_board import (
    BoardChoice,
    doubt_about_choice,
    doubt_about_replay,
    plan_on_board,
    proof_of,
)
from calserve.simulate.plan import HOUR, MINUTE, BoardPlan, FaultsPlan, RunPlan, draw_plan
from calserve.simulate.record import Record, made_here, read_record, write_record
from calserve.simulate.replaying import replay
from calserve.simulate.run import Run
from calserve.simulate.soak import SoakOptions, run_recorded, soak
from calserve.simulate.verdict import Load, Tally, weaknesses

TWO = BoardChoice("assumed-pingpong", 2)
MADE = replace(made_here(), commit="0" * 40)  # the tree under test may have changes of its own


@pytest.fixture(scope="module", autouse=True)
def _loud_again() -> Iterator[None]:
    """A soak in this process silences our loggers; the tests after these read them."""
    level = logging.getLogger("calserve").level
    yield
    logging.getLogger("calserve").setLevel(level)


def minutes_on_board(choice: BoardChoice) -> RunPlan:
    """Three minutes of traffic with a few faults that two jobs in flight meet."""
    (era,) = plan_on_board(draw_plan(5, 3 * MINUTE), choice).eras
    points = ("submit_busy", "status_ccu_exception", "wait_timeout", "completion_swapped", "counters_wrong")
    return RunPlan(5, (replace(era, faults=FaultsPlan(points, mean_gap=600), oddities=(), crashes_ns=()),))


def test_plan_on_a_board_changes_board_and_jobs_in_flight_and_nothing_else() -> None:
    drawn = draw_plan(7, 24 * HOUR)
    moved = plan_on_board(drawn, TWO)
    assert {era.board.base for era in moved.eras} == {"assumed-pingpong"}
    assert {era.server.max_in_flight for era in moved.eras} == {2}
    for before, after in zip(drawn.eras, moved.eras, strict=True):
        server = replace(
            after.server, max_in_flight=before.server.max_in_flight, fixed_engine=before.server.fixed_engine
        )
        assert server == before.server
        assert set(after.faults.points) ^ set(before.faults.points) <= {"completion_swapped"}
        assert set(before.traffic.habits) - set(after.traffic.habits) <= {"stop_strings"}
        back = replace(after, board=before.board, server=before.server, faults=before.faults, traffic=before.traffic)
        assert back == before


def test_plan_on_a_board_uses_both_banks_in_turn_unless_one_is_chosen() -> None:
    drawn = draw_plan(7, 24 * HOUR)
    assert {era.server.fixed_engine for era in plan_on_board(drawn, TWO).eras} == {False, True}
    fixed = plan_on_board(drawn, replace(TWO, bank="fixed"))
    assert {era.server.fixed_engine for era in fixed.eras} == {True}
    auto = plan_on_board(drawn, replace(TWO, bank="auto"))
    assert {era.server.fixed_engine for era in auto.eras} == {False}


def test_plan_with_one_in_flight_has_no_fault_of_pairs_and_assumes_nothing() -> None:
    moved = plan_on_board(draw_plan(7, 24 * HOUR), BoardChoice("assumed-pingpong", 1))
    assert not any("completion_swapped" in era.faults.points for era in moved.eras)
    assert {era.board.assumes for era in moved.eras} == {()}
    two = plan_on_board(draw_plan(7, 24 * HOUR), TWO)
    assert any("completion_swapped" in era.faults.points for era in two.eras)


@pytest.mark.parametrize("profile", ["assumed-pingpong", "assumed-lanes"])
def test_proof_names_what_a_server_of_that_board_would_serve(profile: str) -> None:
    with chosen_board(BoardFlags(board="sim", profile=profile)) as chosen:
        board = chosen.open()
        facts = board.describe()
        board.close()
        package = chosen.package
    proof = proof_of(plan_on_board(draw_plan(3, MINUTE), BoardChoice(profile, 2)))
    assert proof == {
        "profile": profile,
        "package_hash": package.hash,
        "versions": dict(facts.versions),
        "figures_sha256": facts.figures_sha256,
        "max_in_flight": 2,
    }


def test_proof_of_drawn_boards_is_none() -> None:
    assert proof_of(draw_plan(3, MINUTE)) == {}
    mixed = plan_on_board(draw_plan(3, 2 * HOUR), TWO)
    first, second = mixed.eras
    assert proof_of(replace(mixed, eras=(first, replace(second, board=BoardPlan())))) == {}
    one = replace(second, server=replace(second.server, max_in_flight=1))
    assert proof_of(replace(mixed, eras=(first, one)))["max_in_flight"] == 1


def test_board_of_a_plan_proves_two_jobs_only_where_the_plan_assumes_it() -> None:
    plan = plan_on_board(draw_plan(3, MINUTE), TWO).eras[0].board
    assert board_parts(plan).profile.proves("concurrent_jobs")
    assert not board_parts(replace(plan, assumes=())).profile.proves("concurrent_jobs")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (BoardChoice("calculet-2chip", 2), "calculet-2chip has no interface for 2 jobs in flight"),
        (BoardChoice("assumed-pingpong", 3), "1 or 2, not 3"),
        (BoardChoice("assumed-pingpong", 2, "pong"), "auto or fixed, not 'pong'"),
    ],
)
def test_choice_that_cannot_be_is_one_sentence(choice: BoardChoice, said: str) -> None:
    doubt = doubt_about_choice(choice)
    assert said in doubt
    assert "\n" not in doubt


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--board-profile", "nothing"), "There is no board profile 'nothing'"),
        (("--board-profile", "nowhere.yaml"), "nowhere.yaml"),
        (("--board-profile", "calculet-2chip", "--max-in-flight", "2"), "no interface for 2 jobs"),
        (("--board-profile", "assumed-pingpong", "--max-in-flight", "3"), "--max-in-flight is 1 to 2, not 3."),
        (("--board-profile", "assumed-pingpong", "--bank", "pong"), "auto or fixed"),
        (("--max-in-flight", "2"), "--max-in-flight is for a run on one board"),
        (("--bank", "auto"), "--bank is for a run on one board"),
    ],
)
def test_soak_with_wrong_board_flags_is_refused_in_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["soak", "--minutes", "1", *arguments])
    assert result.exit_code == 1
    assert said in result.output
    assert result.output.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("bank", ["auto", "fixed"])
def test_run_on_a_board_with_two_in_flight_is_clean_and_comes_again_the_same(bank: str) -> None:
    plan = minutes_on_board(replace(TWO, bank=bank))
    first, second = Run(plan, check_every=50).run(), Run(plan).run()
    assert first.violations == []
    assert first.digest == second.digest
    assert first.counts["paired_jobs"] > 100
    assert first.counts["output_tokens"] > 1000


@pytest.mark.slow
def test_run_on_a_board_with_one_in_flight_has_no_pair() -> None:
    result = Run(minutes_on_board(BoardChoice("assumed-pingpong", 1))).run()
    assert result.violations == []
    assert result.counts["paired_jobs"] == 0
    assert result.counts["jobs"] > 1000


@pytest.mark.slow
def test_record_of_minutes_says_what_it_ran_on_and_is_too_short_to_prove_anything(tmp_path: Path) -> None:
    path = tmp_path / "minutes.json"
    run_recorded(minutes_on_board(TWO), MADE, path, 0, lambda _: None)
    proof = load_soak(path)
    assert (proof.profile, proof.max_in_flight, proof.verdict, proof.hours) == ("assumed-pingpong", 2, "clean", 0.05)
    with chosen_board(BoardFlags(board="sim", profile="assumed-pingpong")) as chosen:
        board = chosen.open()
        check = check_soak(proof, board.describe(), chosen.package.hash)
        board.close()
    assert (check.name, check.passed) == (SOAK_CHECK, False)
    assert check.figures["doubt"] == "it lasted 0.05 h"  # and agrees with itself
    assert replay(read_record(path), SilentProgress()).is_same


SHIPPED = (Path(figures.__file__).parent / "profiles" / "assumed-pingpong.yaml").read_text()
MINE = SHIPPED.replace("name: assumed-pingpong", "name: mine")


def test_plan_carries_the_profile_of_a_file_and_needs_the_file_no_more(tmp_path: Path) -> None:
    board, path = tmp_path / "mine.yaml", tmp_path / "record.json"
    board.write_text(MINE)
    plan = plan_on_board(draw_plan(5, MINUTE), BoardChoice(str(board), 2))
    proof = proof_of(plan)
    board.unlink()
    assert ({era.board.base for era in plan.eras}, plan.profile) == ({"mine"}, MINE)
    assert proof_of(plan) == proof
    write_record(Record(plan, made_here(), hours=plan.duration_ns / HOUR, proof=proof), path)
    again = read_record(path)
    assert again.plan == plan
    assert board_parts(again.plan.eras[0].board, again.plan.profile).profile.name == "mine"
    assert str(tmp_path) not in path.read_text()


def test_own_profile_under_the_name_of_one_that_ships_is_the_own_one() -> None:
    plan = plan_on_board(draw_plan(5, MINUTE), BoardChoice("assumed-pingpong", 2))
    own = replace(plan, profile=SHIPPED.replace("kv_lanes: {value: 8", "kv_lanes: {value: 6"))
    assert board_parts(own.eras[0].board, own.profile).profile.kv_lanes == 6
    assert proof_of(own)["package_hash"] != proof_of(plan)["package_hash"]


def test_replay_on_a_board_of_which_only_a_time_changed_is_refused_and_names_both_digests(tmp_path: Path) -> None:
    """The package is the same, and so are the versions: as when a profile that ships is changed."""
    path = tmp_path / "record.json"
    plan = plan_on_board(draw_plan(5, MINUTE), BoardChoice("assumed-pingpong", 2))
    older = SHIPPED.replace("prefill_token_ns: {value: 100_000", "prefill_token_ns: {value: 110_000")
    then = proof_of(replace(plan, profile=older))
    now = proof_of(plan)
    assert {name for name in then if then[name] != now[name]} == {"figures_sha256"}
    write_record(Record(plan, made_here(), hours=plan.duration_ns / HOUR, proof=then), path)
    changed = CliRunner().invoke(app, ["soak", "--replay", str(path)])
    assert (changed.exit_code, changed.output.count("\n")) == (1, 1)
    assert f"with figures {then['figures_sha256'][:12]}" in changed.output
    assert f"with figures {now['figures_sha256'][:12]}." in changed.output
    del then["figures_sha256"]  # a record of before the digest
    assert doubt_about_replay(plan, then) == ""


def test_record_of_a_run_on_drawn_boards_proves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "drawn.json"
    soak(SoakOptions(seed=5, duration_ns=MINUTE, record=path), SilentProgress())
    assert json.loads(path.read_text())["proof"] == {}


def test_day_of_a_proof_with_few_pairs_is_too_weak() -> None:
    tally = Tally(virtual_ns=HOUR, counts={"jobs": 1000, "paired_jobs": 249, "wide_jobs": 0})
    said = "24.9 % of jobs had another beside them, not 25 %"
    assert said in weaknesses(tally, Load(is_paired=True))
    assert said not in weaknesses(tally)
    tally.counts["paired_jobs"] = 250
    assert said not in weaknesses(tally, Load(is_paired=True))


def test_day_on_a_board_without_a_graph_of_four_rows_is_not_held_against_wide_jobs() -> None:
    tally = Tally(virtual_ns=HOUR, counts={"jobs": 1000})
    assert any("four rows" in sentence for sentence in weaknesses(tally))
    assert not any("four rows" in sentence for sentence in weaknesses(tally, Load(can_be_wide=False)))


def test_drawn_plan_of_a_seed_has_no_given_board() -> None:
    eras = [era for seed in range(50) for era in draw_plan(seed, 4 * MINUTE).eras]
    assert not any(era.board.is_served for era in eras)
    # two in flight as though proven, where it is not cut; nothing else is given
    given = {era.board.assumes for era in eras if era.board.base == "assumed-lanes"}
    assert given == {(), ("concurrent_jobs",)}
    assert not any(set(era.board.assumes) & set(era.board.cut) for era in eras)
