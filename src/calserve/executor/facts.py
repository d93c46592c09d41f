"""A configured session as `core` may see it: the contract's names turned into counts and proofs."""

from __future__ import annotations

from calserve.core.board import SessionFacts
from calserve.runtime.contract import Board, Evidence, KvLayout, Session


def session_facts(board: Board, session: Session, max_in_flight: int) -> SessionFacts:
    """What the scheduler may use of `session`: graphs, lanes, units, and only what is proven (C0)."""
    graphs = tuple(session.graphs.values())
    return SessionFacts(
        session=session.name,
        graphs=tuple(graph.profile for graph in graphs),
        proven=proven_by(board),
        lanes=session.lanes,
        unit_tokens=session.unit_tokens,
        kv_units=session.kv_units,
        lane_is_unit=all(graph.kv_layout is KvLayout.LANES for graph in graphs),
        max_in_flight=max_in_flight,
    )


def proven_by(board: Board) -> frozenset[str]:
    """Names of the capabilities that are proven on this board (C0)."""
    return frozenset(name for name, state in board.describe().capabilities.items() if state is Evidence.C0)
