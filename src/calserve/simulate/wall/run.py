"""A soak from its first process to its verdict.

Owns the order of things and the tasks beside the traffic. Must not know how anything is measured or judged.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from calserve import __version__
from calserve.package.reader import open_package
from calserve.progress import Progress
from calserve.simulate.wall.cases import Cases, KnownCases, SimCases
from calserve.simulate.wall.conclude import conclude
from calserve.simulate.wall.faults import choose_plan
from calserve.simulate.wall.golden import ask_alone, golden_round
from calserve.simulate.wall.http import call, exchange
from calserve.simulate.wall.judge import Circumstances, End, Result, judge
from calserve.simulate.wall.options import SoakError, WallOptions
from calserve.simulate.wall.report import LOG_NAME, PASSED, STOPPED, Record, WallReport
from calserve.simulate.wall.samples import Sample, Samples, process_sizes, read_metrics
from calserve.simulate.wall.schedule import INJECTED, Arrival, Kind, arrivals
from calserve.simulate.wall.server import ServerProcess, serve_command
from calserve.simulate.wall.verdict import FAILED_STATE, IDLE_ZERO, model_state
from calserve.stopping import TERMINATING, Stopped

SAMPLE_S, SAVE_EVERY = 1.0, 10
# Beyond its deadline an answer may wait for a job on the board, its grace, a drain, a reset and a new generation.
PATIENCE_SPARE_S = 60.0
# A process that ends tells its clients first and stops listening; until it is gone this much may pass.
ENDING_S = 20.0
QUIET_S = 90.0
# More open exchanges than this and the machine is measured, not the server; what is not sent is counted.
OPEN_MAX = 2000
GOLDEN_EVERY = 1000  # injected cancels, timeouts and errors
# A fault may strike while a model loads, which then is not served at all.
LOAD_TRIES = 8
# A model that is out of service for this many samples is given a new process, or the soak would soak nothing more.
OUT_OF_SERVICE_SAMPLES = 5


def run_wall_soak(options: WallOptions, progress: Progress) -> WallReport:
    """Run it all; the report, also in `options.out`.

    Raises SoakError when it cannot be run as asked or the server does not start, PackageError for a bad package,
    Stopped when told to stop. Whatever is raised, the server has ended and the record says how far it came.
    """
    options.check()
    options.out.mkdir(parents=True, exist_ok=True)
    soak = _Soak(options, progress)
    try:
        return asyncio.run(soak.run())
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise Stopped(soak.told_by or signal.SIGINT) from None
    finally:
        if soak.server is not None:
            soak.server.kill()


class _Soak:
    """One run. Used on one event loop."""

    def __init__(self, options: WallOptions, progress: Progress) -> None:
        self.options, self.progress = options, progress
        self.server: ServerProcess | None = None
        self.report = WallReport(_shown(options), {"calserve": __version__})
        self.record = Record(options.out)
        self.samples = Samples()
        self.model = ""
        self.open: set[asyncio.Task[None]] = set()
        self.unsent = 0
        self.is_traffic = True
        self.told: Counter[str] = Counter()
        self.outcomes: dict[str, Counter[str]] = {}
        self.told_by = 0  # the signal that asked for the end
        self.has_faults = options.board == "sim" and options.has_faults
        self._began = time.monotonic()

    async def run(self) -> WallReport:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        with suppress(RuntimeError, ValueError):  # not on the main thread: whoever runs us there takes the signals
            for number in TERMINATING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    loop.add_signal_handler(number, self._told, task, number)
        report = self.report
        self._save()
        try:
            await self._run()
        except asyncio.CancelledError:
            report.verdict, report.reason = STOPPED, "it was told to stop before its end"
            raise
        except BaseException as error:
            report.reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            for open_task in self.open:
                open_task.cancel()
            if self.server is not None:
                await self.server.stop()
            self._gather()
            self._finish()
        return report

    def _told(self, task: asyncio.Task[object], number: int) -> None:
        self.told_by = number
        task.cancel()

    def _finish(self) -> None:
        """What was found is not lost with the file it should be in: whoever asked for the soak is told both."""
        try:
            self.record.finish(self.report)
        except OSError as error:
            self.report.unwritten = f"{error.filename} could not be written: {error.strerror}."

    async def _run(self) -> None:
        options = self.options
        plan, write_plan = choose_plan(options)
        tries = LOAD_TRIES if self.has_faults else 1
        self.server = server = ServerProcess(serve_command(options, plan), options.out / LOG_NAME, write_plan, tries)
        with self.progress.step("Starting the server"):
            await server.start()
        self.progress.line(server.ready_line)
        watch = asyncio.create_task(server.watch())
        cases = await self._prepare(server)
        self._began = time.monotonic()
        sampler = asyncio.create_task(self._sample(server, cases))
        try:
            with self.progress.step("Soaking", round(options.minutes * 60), "s") as step:
                await self._traffic(server, cases, watch, step.advance)
            with self.progress.step("Waiting until it is quiet"):
                values = await self._quiet(server, watch)
        finally:
            sampler.cancel()
            with suppress(asyncio.CancelledError):
                await sampler  # what broke in it breaks the soak
        report = self.report
        report.seconds = time.monotonic() - self._began
        report.golden = await golden_round(server, self.model, cases)
        report.golden_rounds += 1
        values = await self._quiet(server, watch) or values
        report.state = model_state(values)
        report.exit_code = await server.stop()
        await watch
        self._gather()
        conclude(report, values, self.unsent, self.has_faults)

    async def _prepare(self, server: ServerProcess) -> Cases:
        """What is served, and what its right answers are."""
        assert server.address is not None
        status, body = await call(server.address, "GET", "/v1/models")
        if status != 200 or not (listed := json.loads(body)["data"]):
            raise SoakError(f"The server lists no model: status {status}.")
        self.model, context = listed[0]["id"], listed[0]["max_model_len"]
        self.report.versions = {**self.report.versions, "model": self.model}
        if self.options.board == "sim":
            return SimCases(self.model, context)
        assert self.options.model is not None
        package = open_package(self.options.model)
        if package.numerics != "exact":
            raise SoakError(
                f"{self.options.model} has {package.numerics} numerics: its answers depend on who shares a batch."
            )
        known = KnownCases(self.options.seed, package.vocab_size, context)
        with self.progress.step("Asking each prompt alone", len(known.unknown), "prompts") as step:
            for case in known.unknown:
                known.learn(case, await ask_alone(server, self.model, case))
                step.advance(1)
        return known

    async def _traffic(
        self, server: ServerProcess, cases: Cases, watch: asyncio.Task[None], advance: Callable[[int], None]
    ) -> None:
        """Send every arrival at its time, whatever became of those before; then wait for all of them."""
        shown = 0
        for arrival in arrivals(self.options.seed, self.options.requests_per_s, self.options.minutes * 60, cases):
            late = self._began + arrival.at_s - time.monotonic()
            if late > 0:
                await asyncio.sleep(late)
            if watch.done():
                break
            if int(arrival.at_s) > shown:
                advance(int(arrival.at_s) - shown)
                shown = int(arrival.at_s)
            if len(self.open) >= OPEN_MAX:
                self.unsent += 1
                continue
            task = asyncio.create_task(self._one(server, cases, arrival))
            self.open.add(task)
            task.add_done_callback(self._note_done)
        self.is_traffic = False
        while self.open:
            await asyncio.wait(set(self.open))

    async def _one(self, server: ServerProcess, cases: Cases, arrival: Arrival) -> None:
        report = self.report
        report.sent += 1
        before = server.changes
        patience = self.options.deadline_ms / 1000 + PATIENCE_SPARE_S
        result = Result(End.UNREACHABLE)
        if server.address is not None:
            result = await exchange(server.address, self.model, arrival, patience)
            is_silent = result.end in (End.UNREACHABLE, End.UNANSWERED)
            changed = await server.wait_changed(before, ENDING_S) if is_silent else server.changes != before
        else:
            changed = True
        expected = None if arrival.kind is Kind.BAD else cases.expect(arrival.case)
        around = Circumstances(changed, self.has_faults)
        sentence = judge(arrival, result, expected, around)
        if sentence:
            report.add_wrong(f"request {arrival.number} ({arrival.kind.value}) at {arrival.at_s:.1f} s: {sentence}")
        report.ended += 1
        report.injected += arrival.kind in INJECTED or bool(result.code)
        self.outcomes.setdefault(arrival.kind.value, Counter())[result.end.value] += 1
        if result.code:
            self.told[result.code] += 1

    def _note_done(self, task: asyncio.Task[None]) -> None:
        self.open.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report.add_wrong(f"a client of the soak broke: {type(error).__name__}: {error}")

    async def _sample(self, server: ServerProcess, cases: Cases) -> None:
        """Once a second until cancelled; goldens after every `GOLDEN_EVERY` injections."""
        taken, asked_at, out_for = 0, 0, 0
        rounds: asyncio.Task[str] | None = None
        while True:
            at = time.monotonic()
            values = await read_metrics(server.address)
            rss, descriptors, threads = process_sizes(server.pid if server.address is not None else None)
            sample = Sample(at - self._began, server.starts, rss, descriptors, threads, len(self.open), values)
            self.samples.add(sample)
            taken += 1
            out_for = out_for + 1 if model_state(values) == FAILED_STATE else 0
            if out_for >= OUT_OF_SERVICE_SAMPLES and self.is_traffic:
                server.replace()
                out_for = 0
            if taken % SAVE_EVERY == 0:
                self._save()
            if rounds is not None and rounds.done():
                self.report.golden_rounds += 1
                if rounds.result() not in (PASSED, FAILED_STATE):
                    self.report.add_wrong(f"golden at {sample.at_s:.0f} s: {rounds.result()}")
                rounds = None
            if rounds is None and self.report.injected - asked_at >= GOLDEN_EVERY:
                asked_at = self.report.injected
                rounds = asyncio.create_task(golden_round(server, self.model, cases))
            await asyncio.sleep(max(0.0, SAMPLE_S - (time.monotonic() - at)))

    async def _quiet(self, server: ServerProcess, watch: asyncio.Task[None]) -> dict[str, float]:
        """`/metrics` once nothing is left of the traffic, or when that does not come."""
        ends = time.monotonic() + QUIET_S
        values: dict[str, float] = {}
        while time.monotonic() < ends and not watch.done():
            values = await read_metrics(server.address)
            if (
                values
                and model_state(values) in ("ready", FAILED_STATE)
                and not any(values.get(name) for name in IDLE_ZERO)
            ):
                break
            await asyncio.sleep(0.2)
        return values

    def _gather(self) -> None:
        """What stands in counters of ours into the report."""
        report = self.report
        report.outcomes = {kind: dict(counts) for kind, counts in sorted(self.outcomes.items())}
        report.told = dict(sorted(self.told.items()))
        report.samples = self.samples.kept
        if self.server is not None:
            report.restarts, report.replaced = self.server.restarts, self.server.replaced
            report.failed_loads, report.exits = self.server.failed_loads, list(self.server.exits)

    def _save(self) -> None:
        self._gather()
        self.report.seconds = time.monotonic() - self._began
        with suppress(OSError):  # a full disk may have room again at the end, which says so where not
            self.record.save(self.report)


def _shown(options: WallOptions) -> dict[str, object]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()}
