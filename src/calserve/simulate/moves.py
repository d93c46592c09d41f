"""What an operator does to a server that serves: takes sessions down, sometimes in a hurry, sometimes twice.

Owns: which orders come, and when. Must not know: what becomes of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from calserve.core.events import Unload
from calserve.simulate.plan import SECOND


def draw_unloads(r: random.Random, sessions: Sequence[str], now_ns: int) -> list[tuple[int, Unload]]:
    """(ns from now, the order): one session is taken down; the second order may only bring its end forward."""
    session = r.choice(sessions)
    orders = [(0, Unload(session, now_ns + r.choice((SECOND // 10, 2 * SECOND, 20 * SECOND))))]
    if r.random() < 0.5:
        orders.append((r.randrange(3 * SECOND), Unload(session, now_ns + 4 * SECOND)))
    if r.random() < 0.3:
        orders.append((0, Unload("nobody", now_ns)))
    return orders
