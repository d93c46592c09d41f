"""Progress on a pipe is plain lines, on a terminal bars; neither swallows what a step raises."""

from __future__ import annotations

import io

import pytest

from calserve.progress import PlainProgress, RichProgress, choose_progress
from calserve.progress import amount_text as text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_progress_prints_each_tenth_once() -> None:
    out = io.StringIO()
    with PlainProgress(out).step("Fetching", 2_000_000, "B") as step:
        for _ in range(20):
            step.advance(100_000)
    lines = out.getvalue().splitlines()
    assert lines[0] == "Fetching ..."
    assert lines[1] == "Fetching: 10 % of 2.0 MB"
    assert lines[9] == "Fetching: 90 % of 2.0 MB"
    assert lines[10] == "Fetching: done"
    assert len(lines) == 11


def test_plain_progress_of_a_step_that_fails_says_stopped_and_raises() -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match="why"), PlainProgress(out).step("Packing"):
        raise ValueError("why")
    assert out.getvalue().splitlines() == ["Packing ...", "Packing: stopped"]


@pytest.mark.parametrize("total", [None, 10])
def test_rich_progress_shows_the_title_and_ends(total: int | None) -> None:
    out = Terminal()
    with RichProgress(out).step("Packing", total, "files") as step:
        step.advance(3)
    assert "Packing" in out.getvalue()
    with pytest.raises(ValueError, match="why"), RichProgress(out).step("Packing", total):
        raise ValueError("why")


def test_choose_progress_follows_the_terminal() -> None:
    assert isinstance(choose_progress(Terminal()), RichProgress)
    assert isinstance(choose_progress(io.StringIO()), PlainProgress)


@pytest.mark.parametrize(
    ("amount", "unit", "shown"),
    [
        (999, "B", "999 B"),
        (1000, "B", "1.0 kB"),
        (98_362_432, "B", "98.4 MB"),
        (2 * 10**9, "B", "2.0 GB"),
        (7, "x", "7 x"),
    ],
)
def test_amount_text_by_hand(amount: int, unit: str, shown: str) -> None:
    assert text(amount, unit) == shown
