"""A soak that is told to stop, or killed: how it ends, what it leaves, and that no process of it lives on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from server_rig import environment
from soak_rig import SOURCE

from calserve.simulate.record import read_record

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
PLANTED = """
import sys
from calserve.simulate import soak
from calserve.simulate.result import RunResult

def found(plan, made, records, check_every):
    if plan.seed == 3:
        return RunResult(violations=["I4: planted"], violation_count=1, hashes=["0" * 64])
    return run(plan, made, records, check_every)

run, soak._run_plan = soak._run_plan, found
from calserve.cli import main
if __name__ == "__main__":
    main()
"""


class Command:
    """`calserve WORDS...` in a session of its own, so that a signal reaches it alone."""

    def __init__(self, folder: Path, *words: str, program: tuple[str, ...] = ("-m", "calserve.cli")) -> None:
        self.out = folder / "out.txt"
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, *program, *words],
                stdout=out,
                stderr=out,
                cwd=folder,
                start_new_session=True,
                env={**environment(folder / "runtime"), "PYTHONPATH": str(SOURCE)},
                # a shell's background job inherits SIGINT ignored; this is about one on a terminal
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no thread here)
            )
        self.family: set[int] = set()

    @property
    def said(self) -> str:
        return self.out.read_text()

    def until(self, holds: Callable[[], bool]) -> None:
        """Polls: what is waited for is another process's."""
        ends = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < ends, self.said
            time.sleep(0.01)

    def workers(self) -> set[int]:
        """Its children now, and theirs; all that were ever seen are remembered."""
        found, left = set(), [self.process.pid]
        while left:
            with suppress(OSError):
                own = list(map(int, Path(f"/proc/{left[-1]}/task/{left.pop()}/children").read_text().split()))
                found |= set(own)
                left += own
        self.family |= found
        return found

    def end(self, number: int) -> tuple[int, float]:
        """Its exit code, and the seconds from the signal to the end of all its family."""
        self.workers()
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        while (living := [pid for pid in self.family if is_alive(pid)]) and time.monotonic() < began + PATIENCE_S:
            time.sleep(0.01)
        for pid in living:
            os.kill(pid, signal.SIGKILL)
        assert not living, f"{living} outlived it: {self.said}"
        return code, time.monotonic() - began


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runtime").mkdir()
    return tmp_path


@pytest.mark.parametrize("number", SIGNALS)
def test_soak_of_many_seeds_ends_at_once_and_no_worker_outlives_it(folder: Path, number: signal.Signals) -> None:
    command = Command(folder, "soak", "--seeds", "200", "--jobs", "2", "--minutes", "60", "--records", "records")
    command.until(lambda: len(command.workers()) >= 3)  # two workers, and what multiprocessing starts beside them
    code, seconds = command.end(number)
    assert seconds < 5  # a run handed out takes longer than that, and there are 200
    if number is signal.SIGKILL:
        assert code == -9
        return
    assert code == 128 + number
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}[number]
    assert command.said.splitlines()[-1] == f"{word}; 0 of 200 seeds had run, 0 failed"
    assert "Traceback" not in command.said


def test_soak_of_many_seeds_that_is_stopped_keeps_the_record_of_what_had_failed(folder: Path) -> None:
    (folder / "planted.py").write_text(PLANTED)
    words = ("soak", "--seed", "3", "--seeds", "50", "--jobs", "2", "--minutes", "60", "--records", "records")
    command = Command(folder, *words, program=("planted.py",))
    kept = folder / "records" / "seed-3.json"
    command.until(kept.exists)
    assert command.end(signal.SIGINT)[0] == 130
    record = json.loads(kept.read_text())
    assert (record["verdict"], record["violations"]) == ("violated", ["I4: planted"])
    assert command.said.splitlines()[-1].endswith("1 failed, kept in records/seed-3.json")
    assert [path.name for path in kept.parent.iterdir()] == ["seed-3.json"]


@pytest.mark.parametrize("number", SIGNALS[:3])
def test_soak_of_one_seed_that_is_stopped_leaves_a_record_that_says_stopped(
    folder: Path, number: signal.Signals
) -> None:
    command = Command(folder, "soak", "--hours", "2", "--record", "record.json")
    command.until(lambda: "Virtual minutes: " in command.said)
    code, _ = command.end(number)
    assert code == 128 + number
    record = read_record(folder / "record.json")
    assert (record.verdict, record.violations) == ("stopped", [])
    assert command.said.splitlines()[-1].endswith("; record.json has how far it came")
    assert "Traceback" not in command.said


@pytest.mark.parametrize("number", SIGNALS)
def test_soak_on_real_time_takes_its_server_with_it(folder: Path, number: signal.Signals) -> None:
    command = Command(folder, "soak", "--wall", "--minutes", "5", "--out", "wall")
    command.until(lambda: "Soaking" in command.said)
    assert command.workers()
    code, _ = command.end(number)
    assert code == (-9 if number is signal.SIGKILL else 128 + number)
    found = json.loads((folder / "wall" / "soak-wall.json").read_text())
    assert found["verdict"] == ("crashed" if number is signal.SIGKILL else "stopped")
    assert "Traceback" not in command.said


@pytest.mark.parametrize("late_ms", [0, 5, 10, 20, 40, 80, 160, 320])
def test_command_interrupted_while_it_begins_says_no_traceback_and_ends_with_130(folder: Path, late_ms: int) -> None:
    """From the first line of our own on; before it there is no handler but Python's."""
    program = (
        "import sys, calserve.cli.interrupts as first\n"
        "from calserve.cli import main\n"
        "def told():\n    leave(); print('begun', flush=True)\n"
        "leave = first.leave_on_interrupt\n"
        "sys.modules['calserve.cli'].leave_on_interrupt = told\n"
        "sys.argv = ['calserve', 'soak', '--hours', '2']\n"
        "main()\n"
    )
    command = Command(folder, program=("-c", program))
    command.until(lambda: "begun" in command.said)
    time.sleep(late_ms / 1000)
    code, _ = command.end(signal.SIGINT)
    assert code == 130
    assert "Traceback" not in command.said
