"""What a board says of itself at one moment, and its gauges.

Owns the names of the board's metrics. Must not know boards: the composition root makes the reading, at each scrape.
A value the board cannot read is None and has no series; it is never shown as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from calserve.observe.families import counter, gauge

# The label of a part of the board: its number, never its name.
DEVICE = "device"


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One part of the board with its own memory and sensors. Units: bytes, °C, W, Hz."""

    memory_used: int | None = None
    memory_total: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    frequency_hz: float | None = None
    resets: int | None = None


@dataclass(frozen=True, slots=True)
class BoardReading:
    """jobs_pending: not started. jobs_left: not retired. Both are 0 after every drain. Buffers: the host's, of jobs."""

    is_simulated: bool
    is_healthy: bool
    devices: tuple[DeviceReading, ...]
    jobs_pending: int
    jobs_left: int
    jobs_finished: int
    buffers_leased: int
    buffers_quarantined: int


_DEVICE_GAUGES: tuple[tuple[str, str, Callable[[DeviceReading], float | None]], ...] = (
    ("board_memory_used_bytes", "Memory in use on the device.", lambda d: d.memory_used),
    ("board_memory_total_bytes", "Memory of the device.", lambda d: d.memory_total),
    ("board_temperature_celsius", "Temperature of the device.", lambda d: d.temperature_c),
    ("board_power_watts", "Power of the device.", lambda d: d.power_w),
    ("board_frequency_hertz", "Clock of the device.", lambda d: d.frequency_hz),
)


def board_gauges(reading: BoardReading) -> Iterator[Metric]:
    yield gauge("board_simulated", "1 for a simulated board.", [([], float(reading.is_simulated))], [])
    yield gauge("board_healthy", "1 while the board says it is well.", [([], float(reading.is_healthy))], [])
    for name, text, pick in _DEVICE_GAUGES:
        values = [(str(i), pick(device)) for i, device in enumerate(reading.devices)]
        yield gauge(name, text, [([i], value) for i, value in values if value is not None], [DEVICE])
    resets = [([str(i)], float(d.resets)) for i, d in enumerate(reading.devices) if d.resets is not None]
    yield counter("board_resets", "Resets the device has been through.", resets, [DEVICE])
    jobs = [(["pending"], float(reading.jobs_pending)), (["left"], float(reading.jobs_left))]
    yield gauge("board_jobs", "Jobs by the board's own count: not started, and not retired.", jobs, ["state"])
    yield counter("board_jobs_finished", "Jobs the board has finished.", [([], float(reading.jobs_finished))], [])
    buffers = [(["leased"], float(reading.buffers_leased)), (["quarantined"], float(reading.buffers_quarantined))]
    yield gauge("buffers", "Sets of host buffers that are in a job, or put away for good.", buffers, ["state"])
