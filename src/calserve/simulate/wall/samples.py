"""One look at the server a second: its process in `/proc`, its own counts in `/metrics`.

Owns the list of what is watched and the bound on how many samples are kept. Must not judge them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calserve.simulate.wall.http import Address, call

# Beyond this many every second one is dropped and only every second one kept from then on: a day costs what an hour
# does.
SAMPLES_MAX = 4000
_LINE = re.compile(r"^calserve_(\w+?)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_STATE = re.compile(r'(?:state|event|finished_reason|queue)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """at_s: from the start of the traffic. life: how many processes became ready before; values of different lives are
    not compared. Units: bytes and counts; None where it could not be read."""

    at_s: float
    life: int
    rss: int | None = None
    descriptors: int | None = None
    threads: int | None = None
    open_requests: int = 0  # of the soak's clients
    values: Mapping[str, float] = field(default_factory=dict)  # of `/metrics`; empty when it did not answer

    def value(self, name: str) -> float | None:
        return self.values.get(name)


# What is kept of `/metrics`: a family's sum over its series, or by state as `name:state`.
SUMS = (
    "num_requests_running", "num_requests_waiting", "jobs_in_flight", "kv_units", "kv_units_held", "kv_units_reserved",
    "board_memory_used_bytes", "board_memory_total_bytes", "board_resets_total", "board_simulated", "jobs_done_total",
    "jobs_overdue_total",
)  # fmt: skip
BY_STATE = (
    "kv_units_by_state", "lanes", "buffers", "board_jobs", "model_state", "queue_depth", "engine_events_total",
    "request_success_total",
)  # fmt: skip


def parse_metrics(text: str) -> dict[str, float]:
    """The families named above, summed over models and devices."""
    values: dict[str, float] = {}
    for name, labels, number in _LINE.findall(text):
        if name in SUMS:
            values[name] = values.get(name, 0.0) + float(number)
        elif name in BY_STATE and (state := _STATE.search(labels)):
            key = f"{name}:{state.group(1)}"
            values[key] = values.get(key, 0.0) + float(number)
    return values


async def read_metrics(address: Address | None) -> dict[str, float]:
    """Empty when there is no server or it does not answer."""
    if address is None:
        return {}
    status, body = await call(address, "GET", "/metrics")
    return parse_metrics(body.decode("utf-8", "replace")) if status == 200 else {}


def process_sizes(pid: int | None) -> tuple[int | None, int | None, int | None]:
    """Resident bytes, open descriptors and threads of a process; None once it is gone."""
    if pid is None:
        return None, None, None
    root = Path("/proc", str(pid))
    try:
        status = (root / "status").read_text()
        descriptors = len(os.listdir(root / "fd"))
    except OSError:
        return None, None, None
    found = {
        line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(("VmRSS", "Threads"))
    }
    if "VmRSS" not in found:
        return None, None, None  # it has ended and waits to be reaped
    return int(found["VmRSS"]) * 1024, descriptors, int(found["Threads"])


class Samples:
    """What was seen, thinned. Invariant: never more than `SAMPLES_MAX`; in order of time."""

    def __init__(self) -> None:
        self.kept: list[Sample] = []
        self._stride, self._seen = 1, 0

    def add(self, sample: Sample) -> None:
        if self._seen % self._stride == 0:
            self.kept.append(sample)
        self._seen += 1
        if len(self.kept) >= SAMPLES_MAX:
            self.kept = self.kept[::2]
            self._stride *= 2


def lives(samples: Iterable[Sample]) -> list[list[Sample]]:
    """The samples of each process by itself."""
    found: dict[int, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.life, []).append(sample)
    return list(found.values())
