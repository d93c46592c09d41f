"""The server as a process, started as a user starts it and kept up as a supervisor and an operator would.

Owns the process: its start, its ready line, its log, another start when it ends with 75 or is replaced, and its end.
Must not know what is asked of it. Life: `start` waits until it is ready, `watch` runs beside the traffic, `stop` ends
it by its id.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from calserve.core.supervisor import EXIT_UNKNOWN_DMA
from calserve.simulate.wall.http import Address
from calserve.simulate.wall.options import SoakError, WallOptions
from calserve.stopping import child_environment

READY_S = 300.0
# A drain, the grace for a job on the device, and what threads and sockets get to end.
STOP_S = 60.0
_READY_LINE = re.compile(r"http://([\d.]+):(\d+)")


def serve_command(options: WallOptions, plan: Path | None) -> list[str]:
    """The command line of the server, on a free port."""
    command = [sys.executable, "-m", "calserve.cli", "serve", "--port", "0", "--log-level", "warning"]
    command += ["--board", options.board]
    for flag, value in (
        ("--model", options.model),
        ("--board-profile", options.board_profile),
        ("--fault-plan", plan),
        ("--chips", options.chips),
    ):
        if value is not None:
            command += [flag, str(value)]
    settings = {"admission.deadline_default_ms": options.deadline_ms}
    if options.board == "sim":
        # A soak is meant to go on: the budget that protects a real device would end it after two faults.
        settings["recovery.max_resets_per_10min"] = 10_000
    for key, number in settings.items():
        command += ["--set", f"{key}={number}"]
    return [*command, *options.serve_args]


class ServerProcess:
    """Invariants: at most one process at a time; `address` is None while none is ready; every process started here
    has ended when `stop` returns. before_start: told how many processes were started before, ahead of each.
    load_tries: how often a start is tried that ends before it is ready."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        before_start: Callable[[int], None] = lambda _: None,
        load_tries: int = 1,
    ) -> None:
        self._command, self._log = list(command), log
        log.write_bytes(b"")  # of this run; every process of it adds to it
        self._process: asyncio.subprocess.Process | None = None
        self._before_start, self._load_tries = before_start, load_tries
        self._is_stopping = self._is_replacing = False
        self._news = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self.address: Address | None = None
        self.ready_line = ""
        self.starts = 0
        self.ends = 0  # of processes, for whatever reason
        self.exits: deque[int] = deque(maxlen=1000)
        self.restarts = 0  # after 75
        self.replaced = 0
        self.is_over = False  # no other process will be started
        self.failed_loads = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def changes(self) -> tuple[int, int]:
        """Differs between two looks when a process ended or became ready in between."""
        return self.starts, self.ends

    async def wait_changed(self, since: tuple[int, int], limit_s: float) -> bool:
        """Whether `changes` differs from `since` now or within `limit_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.changes == since:
                    self._news.clear()
                    await self._news.wait()
        return self.changes != since

    async def start(self) -> None:
        """Start and wait until it is ready; another try for every fault that may strike while it loads.

        Raises SoakError when it ends first or takes too long.
        """
        for tries_left in reversed(range(self._load_tries)):
            try:
                await self._start_once()
                return
            except SoakError:
                if not tries_left or self._is_stopping:
                    raise
                self.failed_loads += 1

    async def _start_once(self) -> None:
        self._before_start(self.restarts + self.replaced + self.failed_loads)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C is for the soak, which ends its server in order
            )
        found = None
        try:
            async with asyncio.timeout(READY_S):
                found = await self._ready_line(self._process)
        except TimeoutError:
            raise SoakError(f"The server was not ready within {READY_S:.0f} s; see {self._log}.") from None
        if found is None:
            self._note_end(code := await self._process.wait())
            raise SoakError(f"The server ended with code {code} before it was ready: {_last_line(self._log)}")
        self.address = Address(found.group(1), int(found.group(2)))
        self.starts += 1
        self._news.set()
        assert self._process.stdout is not None
        self._reading = asyncio.create_task(_read_on(self._process.stdout))

    async def _ready_line(self, process: asyncio.subprocess.Process) -> re.Match[str] | None:
        """The line that says where it listens; None when its output ends without one."""
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode("utf-8", "replace"):
            if found := _READY_LINE.search(line):
                self.ready_line = line.strip()
                return found
        return None

    async def watch(self) -> None:
        """Start it again whenever it ends with 75 or is being replaced; returns when it ends otherwise."""
        assert self._process is not None, "watched before it was started"
        try:
            while True:
                code = await self._process.wait()
                self._note_end(code)
                if self._is_stopping or not (code == EXIT_UNKNOWN_DMA or self._is_replacing):
                    return
                await self._start_again()
        finally:
            self.is_over = True
            self._news.set()

    def replace(self) -> None:
        """End this process in order and start another, as an operator does with a model that is out of service."""
        if self._process is not None and self._process.returncode is None and not self._is_replacing:
            self._is_replacing = True
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def stop(self) -> int | None:
        """SIGTERM, then SIGKILL when that does not end it; the exit code, None when it had ended before."""
        self._is_stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return None
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                return await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            return await process.wait()

    async def _start_again(self) -> None:
        if self._is_replacing:
            self.replaced += 1
        else:
            self.restarts += 1
        self._is_replacing = False
        await self.start()

    def _note_end(self, code: int) -> None:
        self.address = None
        self.ends += 1
        self.exits.append(code)
        self._news.set()

    def kill(self) -> None:
        """At once and without waiting, for a soak that is itself being torn down."""
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    """What it said last, which is the reason when it was refused."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), f"{log} is empty.")


async def _read_on(stream: asyncio.StreamReader) -> None:
    """What it prints after the ready line, so that its pipe never fills."""
    while await stream.read(65536):
        pass
