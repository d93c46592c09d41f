"""A board's trace as Chrome/Perfetto JSON: one process a chip, one thread a phase.

Owns: the format only. Times of the format are microseconds; ours are ns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from calserve.runtime.contract import TraceSpan
from calserve.runtime.sim.timeline import PHASES


def chrome_trace(spans: Iterable[TraceSpan]) -> str:
    """JSON text that chrome://tracing and ui.perfetto.dev open."""
    events: list[dict[str, object]] = []
    chips: set[int] = set()
    for span in spans:
        chips.add(span.chip)
        events.append(
            {
                "name": f"job {span.job}",
                "cat": span.phase,
                "ph": "X",
                "pid": span.chip,
                "tid": PHASES.index(span.phase),
                "ts": span.begin_ns / 1000,
                "dur": (span.end_ns - span.begin_ns) / 1000,
                "args": {"job": span.job},
            }
        )
    for chip in sorted(chips):
        events.append({"name": "process_name", "ph": "M", "pid": chip, "args": {"name": f"chip {chip}"}})
        for tid, phase in enumerate(PHASES):
            events.append({"name": "thread_name", "ph": "M", "pid": chip, "tid": tid, "args": {"name": phase}})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
