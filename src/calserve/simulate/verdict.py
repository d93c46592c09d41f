"""What a run must have been to have proven something: no violation, real load, rare paths taken.

Owns: the bounds on load and the sentences. Must not know: how the run was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.simulate.plan import HOUR
from calserve.simulate.result import RunResult

MEAN_OUTPUT_MIN = 12.0
WIDE_SHARE_MIN = 0.25
# Of prompts that take half of the context or more; that some fill all of it is a rare path.
LONG_PROMPT_SHARE_MIN = 0.01
WIDE_ROWS = 4
# Of a run that is to prove two jobs in flight, this share must have had another beside them; ours.
PAIRED_SHARE_MIN = 0.25
# Runs shorter than this prove what they prove together with others (`Tally`), not alone.
LONG_RUN_NS = 12 * HOUR
REQUESTS_A_DAY_MIN = 200_000


@dataclass(frozen=True, slots=True)
class Load:
    """What a run is held against. can_be_wide: a board of it has a graph of four rows. is_paired: it is to prove two
    jobs in flight."""

    can_be_wide: bool = True
    is_paired: bool = False


@dataclass(slots=True)
class Tally:
    """Several runs taken together. Invariants: counts only grow."""

    runs: int = 0
    virtual_ns: int = 0
    violations: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    sometimes: dict[str, int] = field(default_factory=dict)
    fired: dict[str, int] = field(default_factory=dict)

    def add(self, result: RunResult) -> None:
        self.runs += 1
        self.virtual_ns += result.virtual_ns
        self.violations += result.violation_count
        for mine, its in (
            (self.counts, result.counts), (self.ends, result.ends), (self.sometimes, result.sometimes),
            (self.fired, result.fired),
        ):  # fmt: skip
            for name, count in its.items():
                mine[name] = mine.get(name, 0) + count

    @property
    def mean_output(self) -> float:
        return self.counts.get("output_tokens", 0) / max(1, self.counts.get("outputs", 0))

    @property
    def wide_share(self) -> float:
        """Of jobs, with four rows or more."""
        return self.counts.get("wide_jobs", 0) / max(1, self.counts.get("jobs", 0))

    @property
    def paired_share(self) -> float:
        """Of jobs, that went out while another of their session was out."""
        return self.counts.get("paired_jobs", 0) / max(1, self.counts.get("jobs", 0))

    @property
    def long_prompt_share(self) -> float:
        return self.counts.get("long_prompts", 0) / max(1, self.counts.get("requests", 0))

    @property
    def unseen(self) -> list[str]:
        return [name for name, count in self.sometimes.items() if not count]


def weaknesses(tally: Tally, load: Load = Load()) -> list[str]:
    """Why a long run, or many short ones together, would prove too little; empty when they do not."""
    hours = tally.virtual_ns / HOUR
    wanted = int(REQUESTS_A_DAY_MIN * hours / 24)
    full = tally.counts.get("queue_full_hours", 0)
    checks = (
        (tally.mean_output >= MEAN_OUTPUT_MIN, f"mean output is {tally.mean_output:.1f} tokens, not {MEAN_OUTPUT_MIN}"),
        (
            tally.wide_share >= WIDE_SHARE_MIN or not load.can_be_wide,
            f"{100 * tally.wide_share:.0f} % of jobs have four rows or more, not {100 * WIDE_SHARE_MIN:.0f} %",
        ),
        (
            tally.paired_share >= PAIRED_SHARE_MIN or not load.is_paired,
            f"{100 * tally.paired_share:.1f} % of jobs had another beside them, not {100 * PAIRED_SHARE_MIN:.0f} %",
        ),
        (
            tally.counts.get("requests", 0) >= wanted,
            f"{tally.counts.get('requests', 0)} requests in {hours:.1f} h, not {wanted}",
        ),
        (
            tally.long_prompt_share >= LONG_PROMPT_SHARE_MIN,
            f"{100 * tally.long_prompt_share:.1f} % of prompts take half the context, "
            f"not {100 * LONG_PROMPT_SHARE_MIN:.0f} %",
        ),
        (full >= int(hours), f"the queue was full in {full} of {int(hours)} hours"),
    )
    found = [sentence for holds, sentence in checks if not holds]
    found += [f"a rare path was never taken: {name}" for name in tally.unseen]
    return found
