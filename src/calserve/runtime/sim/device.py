"""The simulated device: one engine, current calbins, DRAM, resets; it outlives the host that opened it.

Owns: who has the device open, which calbins are current, which completions a host may still receive. Must not
know: requests, host threads. Life: made once with a clock; opened by one `SimBoard` after another; what jobs
wrote to KV stays until something overwrites it or a reset wipes it.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

from calserve.core.commands import ResetScope
from calserve.runtime.contract import Code, JobStatus
from calserve.runtime.errors import CalCode
from calserve.runtime.sim.calbin import RESET_EFFECTS, Calbin
from calserve.runtime.sim.clock import Clock, VirtualClock
from calserve.runtime.sim.engine import JobEngine
from calserve.runtime.sim.facts import DeviceFact, FactKind, Listener
from calserve.runtime.sim.faults import FaultPlan, FaultPoint
from calserve.runtime.sim.job import Job
from calserve.runtime.sim.profile import ASSUMED_LANES, SimProfile


class SimDevice:
    """One physical device. Called by `SimBoard` and its sessions from any thread; locked by its clock.

    listener: told everything the device does, see `facts`. Without one no fact is built.

    Invariants: at most one owner; a current calbin's chips belong to no other current calbin; on wall time
    exactly one thread carries out events while the device is open or a job has something left to do.
    """

    def __init__(
        self,
        profile: SimProfile = ASSUMED_LANES,
        clock: Clock | None = None,
        faults: FaultPlan | None = None,
    ) -> None:
        self.profile = profile
        self.clock: Clock = clock if clock is not None else VirtualClock()
        self.plan = faults if faults is not None else FaultPlan()
        self.lock = self.clock.changed
        self.engine = JobEngine(profile, self.clock, self.plan)
        self.engine.on_stray = self._stray
        self.calbins: list[Calbin] = []
        self.resets = [0] * profile.chips
        self.tickets = itertools.count(1)
        self._owner: object | None = None
        self._host = 0
        self._last_chips: dict[str, tuple[int, ...]] = {}
        self._thread: threading.Thread | None = None
        self.clock.attach(self.engine)

    @property
    def listener(self) -> Listener | None:
        return self.engine.listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        with self.lock:
            self.engine.listener = listener
            self.plan.on_fire = None if listener is None else self._fired

    def open(self, owner: object) -> bool:
        """Take the device; False while somebody holds it."""
        with self.lock:
            if self._owner is not None:
                return False
            self._owner = owner
            if self.clock.threaded and self._thread is None:
                self._thread = threading.Thread(target=self._follow_clock, name="sim-device", daemon=True)
                self._thread.start()
            return True

    def host_ended(self) -> None:
        """The host's process is gone, in order or not: its calbins go, its jobs run on, memory stays."""
        with self.lock:
            if self._owner is not None:
                self._tell(FactKind.HOST_ENDED)
            self._owner = None
            self._host += 1
            for calbin in list(self.calbins):
                self._retire(calbin)
            self.lock.notify_all()
            thread = self._thread if self.engine.next_event_ns() is None else None
        if thread is not None:
            thread.join()

    def configure(self, calbin: Calbin) -> Code:
        """Make `calbin` current, or part of the current one that it was combined with.

        Codes: 18 lost, 7 a current calbin is in the way, 2 its name is taken, 1 no DRAM.
        """
        with self.lock:
            if self.engine.is_lost:
                return CalCode.DEVICE_UNAVAILABLE
            loaded = {other.loaded for other in self.calbins}
            is_full = len(loaded | {calbin.loaded}) > self.profile.calbins_per_board
            if is_full or any(set(other.chips) & set(calbin.chips) for other in self.calbins):
                return CalCode.ALREADY_CONFIGURED
            if any(other.name == calbin.name for other in self.calbins):
                return CalCode.ALREADY_REGISTERED
            if max(calbin.reserved.values()) > self.profile.dram_bytes:
                return CalCode.MEMORY_ALLOCATION
            calbin.host = self._host
            self.calbins.append(calbin)
            self._last_chips[calbin.name] = calbin.chips
            self._tell(FactKind.CONFIGURED, calbin)
            return CalCode.SUCCESS

    def release(self, calbin: Calbin) -> Code:
        """Give the calbin's memory up. Code 17 while it has a job that has not retired."""
        with self.lock:
            if calbin.is_alive and calbin.in_flight:
                return CalCode.DEVICE_BUSY
            if calbin in self.calbins:
                self._retire(calbin)
            return CalCode.SUCCESS

    def submit(self, job: Job) -> None:
        """Queue a job the session has checked. Called under the lock; never blocks."""
        job.calbin.jobs[job.ticket.number] = job
        job.buffers.is_held = True
        self.engine.submit(job)
        self.lock.notify_all()

    def refuse_held(self, calbin: Calbin) -> None:
        """A submit named memory that a job holds. Called under the lock."""
        self._tell(FactKind.HELD, calbin)

    def wait(self, calbin: Calbin, number: int, timeout_ns: int) -> tuple[Code, JobStatus | None]:
        """Block until a completion is there for `calbin`: the one waited for, or one that strayed.

        Codes: 4 never submitted or already delivered, 13 timeout, 18 ended by a reset or the device is lost.
        """
        with self.lock:
            job = calbin.jobs.get(number)
            if job is None:
                return CalCode.INVALID_VALUE, None
            if fault := self.plan.visit(FaultPoint.WAIT_TIMEOUT):
                return fault.value or CalCode.TIMEOUT, None
            deadline_ns = self.clock.now_ns() + timeout_ns
            while True:
                if calbin.stray:
                    return self._delivered(calbin, CalCode.SUCCESS, calbin.stray.popleft(), "stray")
                if job.is_retired:
                    return self._deliver(calbin, job)
                if self.engine.is_lost:
                    return CalCode.DEVICE_UNAVAILABLE, None
                if self.clock.now_ns() >= deadline_ns or not self.clock.wait_until(deadline_ns):
                    return CalCode.TIMEOUT, None

    def is_ready(self, calbin: Calbin, number: int) -> bool:
        """Whether `wait` with these arguments would return at once with anything but a timeout."""
        with self.lock:
            job = calbin.jobs.get(number)
            return job is None or job.is_retired or bool(calbin.stray) or self.engine.is_lost

    def drain(self, calbin: Calbin, timeout_ns: int) -> Code:
        """Block until every job of `calbin` has retired. Codes: 13 timeout, 18 lost."""
        with self.lock:
            deadline_ns = self.clock.now_ns() + timeout_ns
            while calbin.in_flight:
                if self.engine.is_lost:
                    return CalCode.DEVICE_UNAVAILABLE
                if self.clock.now_ns() >= deadline_ns or not self.clock.wait_until(deadline_ns):
                    return CalCode.TIMEOUT
            return CalCode.SUCCESS

    def reset(self, scope: ResetScope, session: str | None) -> Code:
        """What it destroys is in `RESET_EFFECTS`.

        Codes: 27 the scope is not proven here, 4 no such session, 18 lost (only a board reset helps then).
        """
        effect = RESET_EFFECTS[scope]
        if effect.capability is not None and not self.profile.proves(effect.capability):
            return CalCode.NOT_SUPPORTED
        with self.lock:
            if session not in self._last_chips and (session is not None or effect.reach == "session"):
                return CalCode.INVALID_VALUE
            if self.engine.is_lost and scope is not ResetScope.BOARD:
                return CalCode.DEVICE_UNAVAILABLE
            is_wide = session is None or effect.reach == "board"
            chips = tuple(range(self.profile.chips)) if is_wide else self._last_chips[str(session)]
            self._tell(FactKind.RESET, chips=chips, detail=scope.value)
            if effect.ends_sessions:
                for calbin in [calbin for calbin in self.calbins if set(calbin.chips) & set(chips)]:
                    self._retire(calbin)
            self.engine.stop(chips, effect.stops_writes, self.clock.now_ns())
            if effect.clears_kv:
                self.engine.wipe(chips)
            for chip in chips:
                self.resets[chip] += 1
            self.lock.notify_all()
            return CalCode.SUCCESS

    def memory_used(self, chip: int) -> int:
        """Bytes reserved on a chip."""
        return sum(calbin.reserved.get(chip, 0) for calbin in self.calbins)

    def is_loaded(self, calbin: Calbin) -> bool:
        """Whether what `calbin` is part of is current already."""
        with self.lock:
            return any(other.loaded == calbin.loaded for other in self.calbins)

    def _deliver(self, calbin: Calbin, job: Job) -> tuple[Code, JobStatus | None]:
        del calbin.jobs[job.ticket.number]
        report = job.report
        assert report is not None, "a retired job has a report"
        others = [other for other in calbin.jobs.values() if other.is_retired]
        if others and self.plan.visit(FaultPoint.COMPLETION_SWAPPED):
            swapped, others[0].report = others[0].report, report
            assert swapped is not None
            report = swapped
        if fault := self.plan.visit(FaultPoint.COMPLETION_MISNAMED):
            report = replace(report, generation=fault.value or report.generation + 1)
        if self.plan.visit(FaultPoint.COMPLETION_DOUBLE):
            calbin.stray.append(report)
        return self._delivered(calbin, job.code, report)

    def _delivered(
        self, calbin: Calbin, code: Code, report: JobStatus, detail: str = ""
    ) -> tuple[Code, JobStatus | None]:
        if (listener := self.listener) is not None:
            names = report.ticket.number, calbin.name, report.generation, calbin.chips
            listener(DeviceFact(self.clock.now_ns(), FactKind.DELIVERED, *names, code=int(code), detail=detail))
        return code, report

    def _retire(self, calbin: Calbin) -> None:
        """No longer current; its jobs may outlive it."""
        calbin.is_alive = False
        self.calbins.remove(calbin)
        self._tell(FactKind.RELEASED, calbin)

    def _tell(
        self, kind: FactKind, calbin: Calbin | None = None, chips: tuple[int, ...] = (), detail: str = ""
    ) -> None:
        """Report a fact of the device as a whole, or of a calbin."""
        if (listener := self.listener) is None:
            return
        named = ("", 0, chips) if calbin is None else (calbin.name, calbin.generation, calbin.chips)
        listener(DeviceFact(self.clock.now_ns(), kind, 0, *named, detail=detail))

    def _fired(self, point: FaultPoint) -> None:
        with self.lock:
            self._tell(FactKind.FAULT, detail=point.value)

    def _stray(self, job: Job) -> None:
        """A completion of a calbin that is gone reaches whoever has its chips now, in the same host."""
        assert job.report is not None
        for calbin in self.calbins:
            if calbin.host == job.calbin.host and set(calbin.chips) & set(job.chips):
                calbin.stray.append(job.report)

    def _follow_clock(self) -> None:
        """Body of the one device thread on wall time."""
        with self.lock:
            while True:
                at_ns = self.engine.next_event_ns()
                if at_ns is None:
                    if self._owner is None:
                        break
                    self.lock.wait()
                elif (left_ns := at_ns - self.clock.now_ns()) > 0:
                    self.lock.wait(left_ns / 1e9)
                else:
                    self.engine.run_next()
            self._thread = None
