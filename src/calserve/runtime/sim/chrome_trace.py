"""A board's trace as Chrome/Perfetto JSON: a process per chip; a thread per DMA direction, CalCore and chip link.

Owns: the format only. Times of the format are microseconds; ours are ns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from calserve.runtime.contract import TraceSpan

_CORE = 1
# Thread by phase; a CalCore's is _CORE + its number, so that they stand between the DMA that feeds and empties them.
_THREADS = {"h2d": (0, "DMA H2D"), "d2d": (98, "D2D"), "d2h": (99, "DMA D2H")}


def chrome_trace(spans: Iterable[TraceSpan]) -> str:
    """JSON text that chrome://tracing and ui.perfetto.dev open."""
    events: list[dict[str, object]] = []
    threads: dict[tuple[int, int], str] = {}
    for span in spans:
        number, name = _THREADS.get(span.phase, (_CORE + max(span.core, 0), f"CalCore {max(span.core, 0)}"))
        threads[span.chip, number] = name
        events.append(
            {
                "name": f"job {span.job}",
                "cat": span.phase,
                "ph": "X",
                "pid": span.chip,
                "tid": number,
                "ts": span.begin_ns / 1000,
                "dur": (span.end_ns - span.begin_ns) / 1000,
                "args": {"job": span.job, "bank": span.bank.name, "generation": span.generation},
            }
        )
    for chip in sorted({chip for chip, _ in threads}):
        events.append({"name": "process_name", "ph": "M", "pid": chip, "args": {"name": f"chip {chip}"}})
    for (chip, number), name in sorted(threads.items()):
        about = {"ph": "M", "pid": chip, "tid": number}
        events.append({"name": "thread_name", **about, "args": {"name": name}})
        events.append({"name": "thread_sort_index", **about, "args": {"sort_index": number}})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
