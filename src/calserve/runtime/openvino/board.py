"""The `openvino` board: chips made of cores, sessions on them, and what the board says of itself.

Owns: the lock, the chips, the sessions, counters and trace. Must not know: what a session computes. Life:
`open` takes the lock; a chip carries at most one session (its "current calbin"); `close` gives the lock back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calserve.core.commands import ResetScope
from calserve.runtime.contract import (
    BoardFacts,
    BoardPackage,
    ChipFacts,
    Code,
    Counters,
    Evidence,
    Health,
    LoadOptions,
    Session,
    Telemetry,
    TraceSpan,
)
from calserve.runtime.errors import CalCode
from calserve.runtime.lock import BoardLock
from calserve.runtime.openvino import machine
from calserve.runtime.openvino.core import new_core
from calserve.runtime.openvino.faults import FaultLog
from calserve.runtime.openvino.graph import (
    CompiledStep,
    GraphRefused,
    compile_step,
    contract_of,
    settings_complaint,
)
from calserve.runtime.openvino.session import Flight, OpenVinoSession, SessionShape

BOARD_NAME = "openvino"

_TRACE_SPANS_MAX = 8192
# A running step ends within this; after it a reset gives up (code 25).
_ABORT_NS = 10_000_000_000

_PROOF = "tests/board"
_PROVEN = ("batch_lanes", "incremental_prefill", "mixed_batch", "session_reset", "resident_profiles")
# Only with two chips: two sessions at once need two chips to be on.
_PROVEN_ON_TWO_CHIPS = ("concurrent_chips",)
_BUILDABLE = ("concurrent_jobs", "kv_share", "kv_copy", "kv_trim", "kv_state", "job_cancel", "multi_package")


class OpenVinoBoard:
    """`Board` over OpenVINO.

    Invariants: a chip belongs to at most one open session; a session's name is unique. `configure`, `reset`
    and `close` are for one thread; the readers may be called from any.
    """

    def __init__(self, lock: BoardLock, device: str, chips: tuple[ChipFacts, ...]) -> None:
        import openvino as ov

        self._lock = lock
        self._core = new_core(device)
        self._device = device
        self._chips = chips
        self._sessions: dict[str, OpenVinoSession] = {}
        self._faults = FaultLog()
        self._spans: deque[TraceSpan] = deque(maxlen=_TRACE_SPANS_MAX)
        self._finished = 0
        self._versions = {"openvino": str(ov.get_version()), "device": device}

    @classmethod
    def open(cls, chips: int = 1, device: str = "CPU", lock_directory: Path | None = None) -> OpenVinoBoard:
        """Open with one chip of all cores or two of half. Raises BoardBusy; ValueError on a bad count."""
        cores = machine.usable_cores()
        if chips not in (1, 2) or (chips == 2 and device != "CPU"):
            raise ValueError(f"The openvino board has 1 chip, or 2 on CPU; {chips} on {device} were asked for.")
        if cores < chips:
            raise ValueError(f"{chips} chips need {chips} cores; this process may use {cores}.")
        memory = machine.total_memory() or 0
        facts = tuple(ChipFacts(chip, cores // chips, memory // chips) for chip in range(chips))
        return cls(BoardLock.acquire(f"{BOARD_NAME}-{device}", lock_directory), device, facts)

    def describe(self) -> BoardFacts:
        """Capabilities not listed as C0 or C2 are not supported. `proven_by` names the contract suite."""
        proven = _PROVEN + (_PROVEN_ON_TWO_CHIPS if len(self._chips) == 2 else ())
        capabilities = dict.fromkeys(_BUILDABLE, Evidence.C2) | dict.fromkeys(proven, Evidence.C0)
        return BoardFacts(
            name=BOARD_NAME,
            simulated=False,
            chips=self._chips,
            capabilities=capabilities,
            versions=self._versions,
            proven_by=dict.fromkeys(proven, _PROOF),
        )

    def health(self) -> Health:
        """Not ok from a job's death on the device until a reset. detail: the last complaint of any kind."""
        return Health(not self._faults.broken, self._faults.detail)

    def telemetry(self, chip: int) -> Telemetry:
        """Chips share one memory: used is this process's resident size, the same for each."""
        assert 0 <= chip < len(self._chips), f"no chip {chip}"
        return Telemetry(
            memory_used=machine.resident_memory(),
            memory_total=machine.total_memory(),
            temperature_c=machine.package_temperature(),
            frequency_hz=machine.core_frequency(),
            resets=self._faults.resets,
        )

    def counters(self) -> Counters:
        """pending and left are the same here: a job is on the device from `submit` to the end of `wait`."""
        in_flight = sum(session.jobs_in_flight for session in tuple(self._sessions.values()))
        return Counters(pending=in_flight, finished=self._finished, left=in_flight)

    def trace(self, since_ns: int) -> tuple[TraceSpan, ...]:
        """Compute spans ended at or after `since_ns` (`time.perf_counter_ns`); the last 8192 are kept."""
        return tuple(span for span in tuple(self._spans) if span.end_ns >= since_ns)

    def configure(
        self, package: BoardPackage, options: LoadOptions, name: str, generation: int
    ) -> tuple[Code, Session | None]:
        """Compile `package` onto free chips; seconds.

        2: the name is taken; 7: a chip has a session; 14: chips, lanes or KV out of range; 27: more jobs in
        flight than proven; 5: settings; 1: over the quota or the machine's memory; 10, 19: package files.
        """
        self._forget_closed()
        complaint = self._complaint(package, options, name)
        if complaint is not None:
            return self._faults.note("configure", complaint[1], int(complaint[0])), None
        before = machine.resident_memory() or 0
        try:
            step = compile_step(self._core_for(options.chips), self._device, package, self._placement(options.chips))
        except GraphRefused as error:
            return self._faults.note("compile", error, int(CalCode.INVALID_CALBIN)), None
        except (RuntimeError, MemoryError, OSError, KeyError) as error:
            return self._faults.note("compile", error), None
        workspace = max(0, (machine.resident_memory() or 0) - before - package.weight_bytes)
        return self._assemble(package, options, step, (name, generation, workspace))

    def _complaint(self, package: BoardPackage, options: LoadOptions, name: str) -> tuple[CalCode, str] | None:
        if package.board != BOARD_NAME:
            return CalCode.INVALID_CALBIN, f"the package is for board '{package.board}'"
        if name in self._sessions:
            return CalCode.ALREADY_REGISTERED, f"session '{name}' exists"
        if not options.chips or not set(options.chips) <= {chip.chip for chip in self._chips}:
            return CalCode.OUT_OF_RANGE, f"chips {options.chips} of {len(self._chips)}"
        if any(set(options.chips) & set(session.chips) for session in self._sessions.values()):
            return CalCode.ALREADY_CONFIGURED, f"a session is on one of the chips {options.chips}"
        if options.max_in_flight != 1:
            return CalCode.NOT_SUPPORTED, f"max_in_flight {options.max_in_flight} needs concurrent_jobs"
        if options.numerics not in ("", package.numerics):
            return (
                CalCode.INVALID_CONFIG,
                f"numerics '{options.numerics}', the package is '{package.numerics}'",
            )
        if not 0 <= options.lanes <= package.max_lanes:
            return CalCode.OUT_OF_RANGE, f"{options.lanes} lanes, limit {package.max_lanes}"
        if options.kv_tokens < 0 or options.dram_quota < 0:
            return CalCode.OUT_OF_RANGE, "kv_tokens or dram_quota below 0"
        wrong = settings_complaint(package)
        return (CalCode.INVALID_CONFIG, wrong) if wrong else None

    def _assemble(
        self, package: BoardPackage, options: LoadOptions, step: CompiledStep, identity: tuple[str, int, int]
    ) -> tuple[Code, Session | None]:
        name, generation, workspace = identity
        lanes = options.lanes or package.max_lanes
        units = -(-(options.kv_tokens or lanes * package.context) // step.unit_tokens)
        kv_bytes = sum(cache.block_bytes for cache in step.caches) * (units + 1)
        wanted = package.weight_bytes + kv_bytes
        limit = options.dram_quota or machine.total_memory() or wanted
        if wanted > limit:
            text = f"weights and KV need {wanted} bytes, limit {limit}"
            return self._faults.note("configure", text, int(CalCode.MEMORY_ALLOCATION)), None
        shape = SessionShape(
            name=name,
            generation=generation,
            chips=options.chips,
            lanes=lanes,
            kv_units=units,
            max_in_flight=options.max_in_flight,
            weight_bytes=package.weight_bytes,
            workspace_bytes=workspace,
        )
        try:
            contract = contract_of(step, package, lanes, units)
            session = OpenVinoSession(shape, step, contract, self._faults, self._job_finished(options.chips))
        except GraphRefused as error:
            return self._faults.note("configure", error, int(CalCode.INVALID_CALBIN)), None
        except (RuntimeError, MemoryError) as error:
            return self._faults.note("allocate", error), None
        self._sessions[name] = session
        return 0, session

    def _core_for(self, chips: tuple[int, ...]) -> Any:
        """The library's own root object keeps the cores it reserved until its end, whatever became of what was compiled
        with it; so a session that reserves some has one of its own, which ends with it."""
        if len(chips) == len(self._chips):
            return self._core
        return new_core(self._device)

    def _placement(self, chips: tuple[int, ...]) -> Mapping[str, str]:
        """One stream on the chips' cores. A chip that is not the whole board keeps its cores to itself."""
        if self._device != "CPU":
            return {"PERFORMANCE_HINT": "LATENCY"}
        part = len(chips) < len(self._chips)
        return {
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(sum(self._chips[chip].cores for chip in chips)),
            "ENABLE_CPU_PINNING": "YES",
            "ENABLE_CPU_RESERVATION": "YES" if part else "NO",
        }

    def _job_finished(self, chips: tuple[int, ...]) -> Any:
        def record(flight: Flight, device_ns: int) -> None:
            self._finished += 1
            end = flight.begin_ns + device_ns if device_ns else time.perf_counter_ns()
            for chip in chips:
                self._spans.append(TraceSpan(chip, flight.ticket.job, "compute", flight.begin_ns, end))

        return record

    def reset(self, scope: ResetScope, session: str | None) -> Code:
        """Drop sessions with their KV, buffers and compiled graph; each must be configured again.

        SESSION: the named one; other chips' sessions go on. CONFIGURATION: all, whichever is named. A job that
        runs is stopped first; 25 if it does not stop. The scopes below and above these do not exist here: 27.
        """
        if scope not in (ResetScope.SESSION, ResetScope.CONFIGURATION):
            return int(CalCode.NOT_SUPPORTED)
        self._forget_closed()
        everything = scope is ResetScope.CONFIGURATION
        names = list(self._sessions) if everything else [session or ""]
        if not everything and names[0] not in self._sessions:
            return int(CalCode.NO_CONFIG)
        for name in names:
            if code := self._sessions[name].abort(_ABORT_NS):
                return code
            del self._sessions[name]
        self._faults.broken = False
        self._faults.resets += 1
        return 0

    def close(self) -> None:
        """Drop what is left and give the lock back. A job still running is stopped."""
        for session in self._sessions.values():
            session.abort(_ABORT_NS)
        self._sessions.clear()
        self._lock.release()

    def _forget_closed(self) -> None:
        for name in [name for name, session in self._sessions.items() if not session.is_open]:
            del self._sessions[name]
