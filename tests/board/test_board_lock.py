"""The board lock: one holder, told by name, gone with its process however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from calserve.runtime.lock import BoardBusy, BoardLock

HOLD = """
import sys
from pathlib import Path
from calserve.runtime.lock import BoardLock
lock = BoardLock.acquire("thing", Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_acquire_while_held_names_the_holder_in_one_sentence(tmp_path: Path) -> None:
    lock = BoardLock.acquire("thing", tmp_path)
    with pytest.raises(BoardBusy) as refused:
        BoardLock.acquire("thing", tmp_path)
    assert str(refused.value) == (f"Board 'thing' is already open in process {os.getpid()}; stop that process first.")
    lock.release()
    BoardLock.acquire("thing", tmp_path).release()


def test_acquire_another_board_is_not_in_the_way(tmp_path: Path) -> None:
    first, second = BoardLock.acquire("one", tmp_path), BoardLock.acquire("two", tmp_path)
    assert first.path != second.path
    first.release()
    second.release()


def test_acquire_after_the_holder_was_killed_succeeds(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BoardBusy, match=f"process {holder.pid};"):
            BoardLock.acquire("thing", tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
    BoardLock.acquire("thing", tmp_path).release()


def test_acquire_a_name_with_separators_stays_in_its_directory(tmp_path: Path) -> None:
    lock = BoardLock.acquire("../../thing", tmp_path)
    assert lock.path.parent == tmp_path
    lock.release()


def test_acquire_where_the_directory_is_a_link_is_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(BoardBusy, match="not a directory of this user"):
        BoardLock.acquire("thing", tmp_path / "link")


def test_acquire_where_nothing_can_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BoardBusy, match="cannot be used"):
        BoardLock.acquire("thing", tmp_path / "file" / "below")
