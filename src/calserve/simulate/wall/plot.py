"""A soak's curves as one small SVG: no library, no script, readable in any browser.

Owns how samples are drawn. Must not judge them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from calserve.simulate.wall.samples import Sample

WIDTH, HEIGHT, LEFT, TOP = 760, 110, 90, 24
POINTS_MAX = 600

_CURVES: tuple[tuple[str, float, Callable[[Sample], float | None]], ...] = (
    ("resident memory, MiB", 1 << 20, lambda s: s.rss),
    ("descriptors", 1, lambda s: s.descriptors),
    ("threads", 1, lambda s: s.threads),
    ("requests waiting", 1, lambda s: s.value("num_requests_waiting")),
    ("requests running", 1, lambda s: s.value("num_requests_running")),
    ("buffers leased", 1, lambda s: s.value("buffers:leased")),
    ("KV units held", 1, lambda s: s.value("kv_units_held")),
    ("device memory, MiB", 1 << 20, lambda s: s.value("board_memory_used_bytes")),
    ("device resets", 1, lambda s: s.value("board_resets_total")),
)


def svg(samples: Sequence[Sample]) -> str:
    """One curve under another over the same time; a gap where the server did not answer."""
    rows = [_row(i, title, unit, pick, samples) for i, (title, unit, pick) in enumerate(_CURVES)]
    height = TOP + len(_CURVES) * HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="#fff"/>{"".join(rows)}</svg>\n'
    )


def _row(index: int, title: str, unit: float, pick: Callable[[Sample], float | None], samples: Sequence[Sample]) -> str:
    top = TOP + index * HEIGHT
    label = f'<text x="{LEFT}" y="{top - 6}" font-weight="bold">{escape(title)}</text>'
    stride = max(1, len(samples) // POINTS_MAX)
    points = [(s.at_s, None if (v := pick(s)) is None else v / unit) for s in samples[::stride]]
    known = [value for _, value in points if value is not None]
    if not known:
        return label + f'<text x="{LEFT}" y="{top + 20}" fill="#888">not read</text>'
    low, high = min(0.0, *known), max(*known, 1e-9)
    last = max(at for at, _ in points) or 1.0
    inner, tall = WIDTH - LEFT - 20, HEIGHT - 36

    def place(at: float, value: float) -> str:
        return f"{LEFT + inner * at / last:.1f},{top + tall - tall * (value - low) / (high - low):.1f}"

    lines, run = [], []
    for at, value in [*points, (last, None)]:
        if value is not None:
            run.append(place(at, value))
        elif run:
            lines.append(f'<polyline fill="none" stroke="#06c" stroke-width="1.2" points="{" ".join(run)}"/>')
            run = []
    axis = (
        f'<path d="M{LEFT} {top}v{tall}h{inner}" fill="none" stroke="#999"/>'
        f'<text x="{LEFT - 6}" y="{top + 9}" text-anchor="end">{high:.4g}</text>'
        f'<text x="{LEFT - 6}" y="{top + tall}" text-anchor="end">{low:.4g}</text>'
        f'<text x="{LEFT + inner}" y="{top + tall + 13}" text-anchor="end">{last:.0f} s</text>'
    )
    return label + axis + "".join(lines)
