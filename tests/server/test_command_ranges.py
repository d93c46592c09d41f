"""Every number a command takes has a range: its help states it, and one sentence refuses what is outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from calserve.cli.app import app

HUGE = {"integer": str(10**30), "float": "1e300"}
OUTSIDE = {
    "integer": ("-1", HUGE["integer"], "-" + HUGE["integer"]),
    "float": ("-1", "nan", "inf", "-inf", HUGE["float"]),
}


def numbers(group: typer.Typer = app, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, str, str]]:
    """(command, flag, kind, help) of every option that takes a number, as the functions of the commands declare it."""
    for command in group.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        for parameter, hint in get_type_hints(command.callback, include_extras=True).items():
            if get_origin(hint) is not Annotated:
                continue
            value, option = get_args(hint)
            kinds = {int: "integer", float: "float"}
            kind = next((kinds[one] for one in (value, *get_args(value)) if one in kinds), "")
            if kind:
                flag = f"--{parameter.replace('_', '-')}"
                yield (*path, name), flag, kind, option.help or ""
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from numbers(inner.typer_instance, (*path, str(inner.name)))


def test_numbers_of_every_command_are_found() -> None:
    seen = {(path[0], flag) for path, flag, _, _ in numbers()}
    known = {
        ("pack", "--context"),
        ("serve", "--port"),
        ("serve", "--drain"),
        ("bench", "--new-tokens"),
        ("prove", "--steps"),
        ("prove", "--repeats"),
        ("soak", "--seed"),
        ("soak", "--minutes"),
        ("soak", "--rate"),
    }
    assert known <= seen


@pytest.mark.parametrize(("path", "flag", "kind", "told"), list(numbers()), ids=lambda value: str(value)[:40])
def test_number_outside_its_range_is_refused_in_one_sentence(
    path: tuple[str, ...], flag: str, kind: str, told: str
) -> None:
    stated = re.search(r"\(((?:above )?\d+ (?:to|and at most) \d+)\)$", told)
    assert stated is not None, f"{flag} of {path} states no range"
    for value in OUTSIDE[kind]:
        result = CliRunner().invoke(app, [*path, f"{flag}={value}"])
        assert result.exit_code == 1, result.output
        assert result.output.startswith(f"calserve: {flag} is {stated[1]}, not ")
        assert result.output.count("\n") == 1
        assert len(result.output) < 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("prove", "concurrent-jobs", "--steps", "1"), "--steps is 2 to 100000, not 1."),
        (("prove", "concurrent-jobs", "--steps", "100001"), "--steps is 2 to 100000, not 100001."),
        (("prove", "concurrent-jobs", "--tokens", "100001"), "--tokens is 2 to 100000, not 100001."),
        (("prove", "concurrent-jobs", "--repeats", "0"), "--repeats is 1 to 100, not 0."),
        (("prove", "concurrent-jobs", "--rows", "65"), "--rows is 0 to 64, not 65."),
        (("serve", "--port", "65536"), "--port is 0 to 65535, not 65536."),
        (("serve", "--drain", "3600.5"), "--drain is 0 to 3600, not 3600.5."),
        (("soak", "--rate", "0"), "--rate is above 0 and at most 1000, not 0.0."),
        (("soak", "--jobs", "257"), "--jobs is 1 to 256, not 257."),
        (("bench", "--new-tokens", "1"), "--new-tokens is 2 to 1048576, not 1."),
    ],
)
def test_number_just_outside_is_refused(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.output) == (1, f"calserve: {said}\n")


@pytest.mark.parametrize("streams", ["0", "-1", "257", "1,,2", "", "nan", "1e3", ",".join("1" * 17), "9" * 5000])
def test_numbers_of_streams_outside_their_range_are_refused(streams: str) -> None:
    result = CliRunner().invoke(app, ["bench", "--model", "nowhere", f"--streams={streams}"])
    assert result.exit_code == 1
    assert result.output.startswith("calserve: --streams takes up to 16 numbers of 1 to 256, such as 1,4,8,16, not ")
    assert result.output.count("\n") == 1
    assert len(result.output) < 200


@pytest.mark.parametrize("profiles", ["x", "", "9" * 5000])
def test_lane_counts_that_are_no_numbers_are_refused_shortly(profiles: str) -> None:
    result = CliRunner().invoke(app, ["pack", "nowhere.gguf", "-o", "out", f"--profiles={profiles}"])
    assert result.exit_code == 1
    assert result.output.startswith("calserve: --profiles takes lane counts such as 1,4,8,16, not ")
    assert len(result.output) < 200
