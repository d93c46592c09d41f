"""What can be read of the machine: cores a process may use, memory, and the sensors the kernel shows.

Owns: reading /proc and /sys. Must not know: OpenVINO, boards. What cannot be read is None, never 0.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_CPU = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Physical cores this process may run on, and no more than its control group's quota of time."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    cores = {_core_of(cpu) for cpu in cpus}
    quota = _quota_cores()
    return max(1, len(cores) if quota is None else min(len(cores), quota))


def _core_of(cpu: int) -> tuple[str, str]:
    topology = _CPU / f"cpu{cpu}" / "topology"
    package, core = _text(topology / "physical_package_id"), _text(topology / "core_id")
    return (package, core) if package is not None and core is not None else ("cpu", str(cpu))


def _quota_cores() -> int | None:
    """Cores' worth of time of a version 2 control group (`cpu.max`: quota and period, or `max`)."""
    fields = (_text(Path("/sys/fs/cgroup/cpu.max")) or "max").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return max(1, math.ceil(int(fields[0]) / int(fields[1])))


def total_memory() -> int | None:
    """Bytes of memory of the machine, or None."""
    return _memory_line("MemTotal:")


def resident_memory() -> int | None:
    """Bytes this process holds in memory, or None."""
    fields = (_text(Path("/proc/self/statm")) or "").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None


def package_temperature() -> float | None:
    """°C of the processor package, where the kernel names such a sensor."""
    for zone in sorted(Path("/sys/class/thermal").glob("thermal_zone*")):
        if _text(zone / "type") == "x86_pkg_temp":
            value = _text(zone / "temp")
            return int(value) / 1000 if value else None
    return None


def core_frequency() -> float | None:
    """Hz of the first usable core, where the kernel shows its governor."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    value = _text(_CPU / f"cpu{cpus[0]}" / "cpufreq" / "scaling_cur_freq")
    return int(value) * 1000.0 if value else None


def _memory_line(key: str) -> int | None:
    for line in (_text(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None
