"""A job: one submission to the board, described once.

Owns the printed form of "which rows run, where, and at what position". It is written by the planner, read by
the executor's encoder and by the completion step, and travels with the job until the job retires: nothing
works out again later which row belonged to whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Task(Enum):
    """What a compiled graph can do in one step."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class LogitsWanted(Enum):
    """Which positions of a row must come back as logits."""

    NONE = "none"  # a prefill chunk that is not the last
    LAST = "last"
    ALL = "all"  # teacher-forced checks only; never asked for by the scheduler


class Bank(Enum):
    """Job bank of the board. AUTO lets the board choose (`infer`); the others pin it."""

    AUTO = -1
    PING = 0
    PONG = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a job.

    lane: row of the compiled graph when the graph binds rows (`row_binding: fixed`), else the slot the
        sequence holds for its life.
    kv_units: every unit the sequence holds after this job, in position order; on a lane board exactly one.
    first_position: committed length before the job; tokens go to first_position .. +token_count-1.
    token_count: tokens computed in this job (1 for a decode), at least 1.
    """

    request: str
    lane: int
    kv_units: tuple[int, ...]
    first_position: int
    token_count: int
    logits: LogitsWanted


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job, its times on the engine's clock.

    execution_deadline_ns: the executor reports JobOverdue past it. submit_by_ns: the queue deadline (seed 003,
        section 9.1); a job that is not with the board by then is not submitted any more and rolls back; 0: none.
    """

    job: int
    generation: int
    session: str
    graph: str
    task: Task
    bank: Bank
    execution_deadline_ns: int
    rows: tuple[Row, ...]
    submit_by_ns: int = 0
