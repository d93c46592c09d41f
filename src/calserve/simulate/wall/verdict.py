"""From what was counted and sampled to pass or fail, every bound stated.

Owns the checks and their tolerances. Must not measure anything itself. Pure functions.

A drift is the least-squares line through the samples of one process after its warm-up, from its first to its last
moment there: what a leak shows as, and what a single peak does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from calserve.simulate.wall.samples import Sample

# The share of a process's samples that is warm-up, and how many must be left for a line to mean something.
WARM_UP = 0.3
SAMPLES_MIN = 8
MIB = 1 << 20
# A heap that has settled still moves: by a twentieth of it, and by what one burst of requests leaves behind.
RSS_SHARE, RSS_SPARE = 0.05, 32 * MIB
# Descriptors follow the clients that are connected; threads do not.
DESCRIPTORS_SPARE, THREADS_SPARE = 24.0, 2.0
# A queue that drifts by a quarter of the requests that may wait is one that does not keep up.
QUEUE_SPARE = 32.0
FAILED_STATE = "failed"
KV_STATES = ("free", "held", "quarantined", "unknown")


@dataclass(frozen=True, slots=True)
class Check:
    """One bound. given: what was found; limit: what it may be; both as people read them. ok: None where there was
    nothing to judge, which is neither in bounds nor out of them."""

    name: str
    ok: bool | None
    limit: str
    given: str


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares: y per unit of x. 0 for fewer than two different x."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def drift(samples: Sequence[Sample], pick: Callable[[Sample], float | None]) -> float | None:
    """How far the line through one life's samples climbs; None when they are too few."""
    points = [(sample.at_s, value) for sample in samples if (value := pick(sample)) is not None]
    points = points[int(len(points) * WARM_UP) :]
    if len(points) < SAMPLES_MIN:
        return None
    return slope(points) * (points[-1][0] - points[0][0])


def drift_checks(lives: Iterable[Sequence[Sample]]) -> list[Check]:
    """Memory, descriptors, threads, the queue and the device's memory of every process that lived long enough."""
    lives = list(lives)
    rss = [sample.rss for life in lives for sample in life if sample.rss is not None]
    rss_limit = RSS_SPARE + RSS_SHARE * (sorted(rss)[len(rss) // 2] if rss else 0)
    return [
        _worst("rss drift", lives, lambda s: s.rss, rss_limit, MIB, "MiB"),
        _worst("descriptor drift", lives, lambda s: s.descriptors, DESCRIPTORS_SPARE),
        _worst("thread drift", lives, lambda s: s.threads, THREADS_SPARE),
        _worst("queue drift", lives, lambda s: s.value("num_requests_waiting"), QUEUE_SPARE),
        _worst("device memory drift", lives, _device_memory, RSS_SPARE if _is_real(lives) else 0.0, MIB, "MiB"),
    ]


def _is_real(lives: Iterable[Sequence[Sample]]) -> bool:
    return any(sample.value("board_simulated") == 0 for life in lives for sample in life)


def _device_memory(sample: Sample) -> float | None:
    """Only while the model serves: a reset gives the memory back, and configuring takes it again. A real board whose
    memory is this machine's is judged by the process's own."""
    is_ready = bool(sample.value("model_state:ready")) and not sample.value("model_state:recovering")
    is_simulated = sample.value("board_simulated") == 1
    return sample.value("board_memory_used_bytes") if is_ready and is_simulated else None


def _worst(
    name: str,
    lives: Iterable[Sequence[Sample]],
    pick: Callable[[Sample], float | None],
    limit: float,
    unit: float = 1.0,
    symbol: str = "",
) -> Check:
    found = [value for life in lives if (value := drift(life, pick)) is not None]
    shown_limit = f"+{limit / unit:.1f} {symbol}".rstrip()
    if not found:
        return Check(name, None, shown_limit, "nothing to judge")
    worst = max(found)
    return Check(name, worst <= limit, shown_limit, f"{worst / unit:+.1f} {symbol}".rstrip())


def kv_check(samples: Iterable[Sample]) -> Check:
    """In every sample free + held + quarantined + unknown units are all units, and none is held beyond the total."""
    seen = wrong = 0
    example = ""
    for sample in samples:
        total = sample.value("kv_units")
        if total is None:
            continue
        seen += 1
        parts = {state: sample.value(f"kv_units_by_state:{state}") or 0.0 for state in KV_STATES}
        if sum(parts.values()) != total:
            wrong += 1
            example = example or f": {parts} of {total:.0f} at {sample.at_s:.0f} s"
    return Check("kv audit", wrong == 0 and seen > 0, "free + held + ... = all", f"{wrong} wrong of {seen}{example}")


# What must be over when nothing is asked any more.
IDLE_ZERO = (
    "num_requests_running", "num_requests_waiting", "jobs_in_flight", "kv_units_held", "kv_units_reserved",
    "buffers:leased", "board_jobs:pending", "board_jobs:left", "lanes:unknown", "lanes:releasing",
)  # fmt: skip


def idle_check(values: dict[str, float]) -> Check:
    """At the end nothing is running, held, reserved, leased or left, and every lane and unit is free."""
    if not values:
        return Check("idle at the end", False, "nothing held", "the server did not answer")
    kept = [f"{name} {values[name]:.0f}" for name in IDLE_ZERO if values.get(name)]
    if values.get("kv_units_by_state:free") != values.get("kv_units"):
        kept.append(f"{values.get('kv_units_by_state:free', 0):.0f} of {values.get('kv_units', 0):.0f} units free")
    return Check("idle at the end", not kept, "nothing held", ", ".join(kept) or "nothing held")


def count_check(values: dict[str, float]) -> Check:
    """Of the last process: requests submitted are as many as ended, each once."""
    submitted = values.get("engine_events_total:submitted", 0.0)
    ended = sum(value for name, value in values.items() if name.startswith("request_success_total:"))
    return Check("server's own count", submitted == ended, f"{submitted:.0f} submitted", f"{ended:.0f} ended")


def model_state(values: Mapping[str, float]) -> str:
    """Of the model's sessions: "ready" where any is and the rest are ready or failed, else the state of most; ""
    where nothing is known."""
    states = {
        name.partition(":")[2]: count for name, count in values.items() if name.startswith("model_state:") and count
    }
    if "ready" in states and states.keys() <= {"ready", FAILED_STATE}:
        return "ready"
    return max(states, key=lambda state: states[state], default="")
