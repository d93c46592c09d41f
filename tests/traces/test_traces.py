"""Golden scenarios: each script is played and its printed form must be the file, to the letter.

To rewrite them after a deliberate change: CALSERVE_REWRITE_TRACES=1 python -m pytest tests/traces
then read the diff: every line of it is a change of behaviour.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from core_rig import MS, Rig
from trace_script import board, play, show, stand

TRACES = sorted(Path(__file__).parent.glob("*.txt"))


def render(text: str) -> str:
    """The file with every answer worked out anew; comments and event lines stay as they are."""
    lines: list[str] = []
    rig: Rig | None = None
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            lines.append(line)
        elif not line.startswith(" "):
            lines.append(line)
            when, verb, *words = line.split()
            if verb == "board":
                rig = board(words).up()
                continue
            assert rig is not None, "a script starts with its board"
            commands = play(rig.at(int(when) * MS), verb, words)
            lines += [f"    {shown}" for command in commands for shown in show(command)]
            lines.append(f"    {stand(rig)}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace_played_again_gives_the_recorded_answers(path: Path) -> None:
    text = path.read_text()
    played = render(text)
    if os.environ.get("CALSERVE_REWRITE_TRACES") == "1":
        path.write_text(played)
    else:
        assert played == text


def test_traces_cover_the_scenarios_of_the_plan() -> None:
    assert {path.stem for path in TRACES} == {
        "busy_retry",
        "cancel_in_flight",
        "chunked_prefill",
        "continuous_batching",
        "deadline",
        "downgrade",
        "drain",
        "fenced_lane",
        "fixed_lanes",
        "no_kv_room",
        "overdue",
        "recovery",
        "roll_back",
        "shutdown",
        "two_in_flight",
        "window",
    }
