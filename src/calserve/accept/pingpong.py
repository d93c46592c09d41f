"""The proof of `concurrent_jobs`: two jobs in flight on this board with this package (seed 003, sections 6.4 and 13).

Owns: what is run and what it is held against. Two sets of sequences, one for each bank, fixed (PING and PONG) and
with the board's own choice:

    correct   >= 1,000 tokens of each sequence in turn with the other set, each token that of the same sequence alone
    overlap   in the board's trace, the share of each bank's time in which the other bank's job worked too
    gain      tokens/s over the best way with one job in flight: the sets in turn, or all rows in one job where
              `batch_lanes` is proven; at least 10 %
    tpot      99th percentile of the time between a sequence's tokens, against the same; at most 5 % longer
    soak      a clean soak of 24 h with two in flight, from its record; only needed to be on by default

Must not know: which board it is. Life: one session, configured for two in flight, used by everything, closed at the
end. A step that fails ends the run: what was not looked at by then is missing, and the state is C1.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from calserve.accept.driver import Driver, SequenceSet, Stopped
from calserve.accept.evidence import (
    BANK_MODES,
    CONCURRENT_JOBS,
    JOBS_PROVEN,
    Check,
    EvidenceRecord,
    Figure,
    judge_checks,
)
from calserve.accept.overlap import measure_overlap
from calserve.accept.soak_record import SoakProof, check_soak
from calserve.core.job import Bank
from calserve.progress import Progress
from calserve.runtime.contract import Board, BoardFacts, BoardPackage, Evidence, LoadOptions, Session, TraceSpan

# Seed 003, sections 13.1 and 13.3.
TOKENS_MIN = 1000
GAIN_MIN = 1.10
TPOT_MAX = 1.05
# Ours: with T the time two in flight take, a gain of 10 % needs a tenth of T to be shared; half of that is a sign.
OVERLAP_MIN = 0.05

_BANKS = {"fixed": (Bank.PING, Bank.PONG), "auto": (Bank.AUTO, Bank.AUTO)}
_SESSION, _GENERATION = "proof", 1


@dataclass(frozen=True, slots=True)
class PingPongOptions:
    """chips: of the session. tokens: of each sequence in the correctness run. steps: of each set, in each timed run.

    rows: sequences of a set; 0 takes half the lanes where `batch_lanes` is proven and a graph is there, else one.
    spend: called after every step, for the host's own time on a virtual clock. soak: what a soak record proves.
    """

    clock: Callable[[], int]
    spend: Callable[[], None] = lambda: None
    chips: tuple[int, ...] = (0,)
    tokens: int = TOKENS_MIN
    steps: int = 200
    repeats: int = 5
    prompt_tokens: int = 16
    rows: int = 0
    soak: SoakProof | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """stopped: the sentence of the step that ended the run early, or "". spans: the board's trace of the jobs on
    which overlap was measured, to be looked at; empty where the run did not come so far."""

    evidence: EvidenceRecord
    stopped: str = ""
    spans: tuple[TraceSpan, ...] = ()


@dataclass(slots=True)
class _Timed:
    """Samples of one way of running the same sequences."""

    rates: list[float] = field(default_factory=list)
    gaps_ns: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def p99_ns(self) -> int:
        ordered = sorted(self.gaps_ns)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def run_pingpong(board: Board, package: BoardPackage, options: PingPongOptions, progress: Progress) -> Report:
    """Run every part that can be run; never raises for what a board does."""
    facts = board.describe()
    checks: list[Check] = []
    stopped = ""
    spans: list[TraceSpan] = []
    load = LoadOptions(chips=options.chips, numerics=package.numerics, max_in_flight=JOBS_PROVEN)
    code, session = board.configure(package, load, _SESSION, _GENERATION)
    if session is None:
        stopped = f"configure for {JOBS_PROVEN} jobs in flight gave code {code}: {board.health().detail or 'refused'}"
    else:
        try:
            proof = _Proof(board, session, package, options, progress)
            spans = proof.spans
            for mode in BANK_MODES:
                checks.append(proof.check_correct(mode))
            checks += proof.check_speed()
        except Stopped as end:
            stopped = str(end)
        if (code := session.close()) and not stopped:
            stopped = f"close gave code {code}"
    if options.soak is not None:
        checks.append(check_soak(options.soak, facts, package.hash))
    return Report(_record(facts, package, options, tuple(checks)), stopped, tuple(spans))


def _record(
    facts: BoardFacts, package: BoardPackage, options: PingPongOptions, checks: tuple[Check, ...]
) -> EvidenceRecord:
    state, missing = judge_checks(checks)
    method: dict[str, Figure] = {
        "tokens": options.tokens,
        "steps": options.steps,
        "repeats": options.repeats,
        "prompt_tokens": options.prompt_tokens,
        "chips": ",".join(map(str, options.chips)),
    }
    return EvidenceRecord(
        capability=CONCURRENT_JOBS,
        state=state,
        board=facts.name,
        simulated=facts.simulated,
        package_hash=package.hash,
        versions=dict(facts.versions),
        method=method,
        checks=checks,
        missing=missing,
        figures_sha256=facts.figures_sha256,
    )


class _Proof:
    """The parts over one session. Raises Stopped."""

    def __init__(
        self, board: Board, session: Session, package: BoardPackage, options: PingPongOptions, progress: Progress
    ) -> None:
        self._board = board
        self._session = session
        self._package = package
        self._options = options
        self._progress = progress
        self.spans: list[TraceSpan] = []
        self._batches = board.describe().capabilities.get("batch_lanes") is Evidence.C0
        self._driver = Driver(session, _GENERATION, options.clock, options.spend)
        rows = options.rows or self._most_rows()
        if session.lanes < 2 * rows:
            raise Stopped(f"two sets of {rows} sequences need {2 * rows} lanes, the session has {session.lanes}")
        self._lanes = (tuple(range(rows)), tuple(range(rows, 2 * rows)))
        self._most = package.context - options.prompt_tokens
        if min(options.tokens, options.steps, self._most, options.prompt_tokens) < 2 or options.repeats < 1:
            raise Stopped(f"prompts of {options.prompt_tokens} tokens leave no run in a context of {package.context}")

    def _most_rows(self) -> int:
        """Half the lanes, where jobs of so many rows are proven and there is a graph for them."""
        half = max(1, self._session.lanes // 2)
        is_able = self._batches and self._driver.decode_graph(range(half, 2 * half)) is not None
        return half if is_able else 1

    # --- correctness ------------------------------------------------------------------------------------

    def check_correct(self, mode: str) -> Check:
        """Sequences are long as the context lets them be; new ones follow until each set has its tokens."""
        wanted = self._options.tokens
        length = min(wanted, self._most)
        rounds = -(-wanted // length)
        compared = wrong = 0
        first_wrong = ""
        with self._progress.step(f"Tokens in turn, {mode} banks", rounds, "rounds") as step:
            for number in range(rounds):
                salt = 2 * (rounds * BANK_MODES.index(mode) + number)
                sets = self._sets(_BANKS[mode], salt)
                alone = self._alone(sets, length)
                self._driver.run(sets, length, JOBS_PROVEN)
                self._driver.release(sets)
                for lane, expected, found in _pairs(sets, alone):
                    bad = [i for i in range(length) if expected[i] != found[i]]
                    compared, wrong = compared + length, wrong + len(bad)
                    if bad and not first_wrong:
                        first_wrong = f"lane {lane}, token {bad[0]}: {found[bad[0]]}, alone {expected[bad[0]]}"
                step.advance(1)
        figures: dict[str, Figure] = {
            "tokens_each": rounds * length,
            "sequences": sum(map(len, self._lanes)),
            "compared": compared,
            "wrong": wrong,
            "first_wrong": first_wrong,
        }
        is_enough = rounds * length >= TOKENS_MIN
        bound = f"at least {TOKENS_MIN} tokens of each sequence, every one that of the sequence alone"
        return Check(f"correct_{mode}", is_enough and not wrong, bound, figures)

    def _alone(self, sets: Sequence[SequenceSet], length: int) -> list[list[list[int]]]:
        """The same sequences with one job in flight and nobody beside them, by set.

        On the other set's lanes: what this run leaves in KV must not be what a lost write would have left. Alone
        means one by one where numerics are exact; where they are fast, who shares a job may move a token, so the
        set is the smallest thing that can be compared.
        """
        outputs = []
        for group, lanes in zip(sets, self._lanes[::-1], strict=True):
            if self._package.numerics == "exact":
                parts = [SequenceSet((lane,), (prompt,)) for lane, prompt in zip(lanes, group.prompts, strict=True)]
            else:
                parts = [SequenceSet(lanes, group.prompts)]
            for part in parts:
                self._driver.run([part], length, 1)
                self._driver.release([part])
            outputs.append([output for part in parts for output in part.outputs])
        return outputs

    # --- speed ------------------------------------------------------------------------------------------

    def check_speed(self) -> list[Check]:
        """Every way of running the same sequences, in turn, repeat after repeat."""
        options = self._options
        every = (*self._lanes[0], *self._lanes[1])
        ways = ["one", "two_fixed", "two_auto"]
        if self._batches and self._driver.decode_graph(every) is not None:
            ways.append("one_job")
        timed = {way: _Timed() for way in ways}
        overlaps: dict[str, Check] = {}
        with self._progress.step("Speed", options.repeats, "rounds") as step:
            for repeat in range(options.repeats):
                for way in ways if repeat % 2 else ways[::-1]:
                    mode = way.removeprefix("two_") if way.startswith("two_") else ""
                    first_job, since = len(self._driver.jobs) + 1, self._last_span_ns()
                    self._time(way, _BANKS[mode or "auto"], timed[way])
                    if mode and mode not in overlaps:
                        overlaps[mode] = self._overlap(mode, first_job, since)
                step.advance(1)
        best = max((way for way in ways if not way.startswith("two_")), key=lambda way: timed[way].rate)
        checks = []
        for mode in BANK_MODES:
            checks += [overlaps[mode], *_speed_checks(mode, timed[f"two_{mode}"], best, timed[best])]
        return checks

    def _time(self, way: str, banks: Sequence[Bank], into: _Timed) -> None:
        sets = self._sets(banks, salt=1000)
        if way == "one_job":
            sets = [SequenceSet(sets[0].lanes + sets[1].lanes, sets[0].prompts + sets[1].prompts)]
        steps = min(self._options.steps, self._most - 1)
        self._driver.run(sets, 1, 1)  # prefills are not timed
        before = self._options.clock()
        self._driver.run(sets, 1 + steps, JOBS_PROVEN if way.startswith("two_") else 1)
        took = self._options.clock() - before
        self._driver.release(sets)
        tokens = steps * sum(len(group.lanes) for group in sets)
        into.rates.append(tokens * 1e9 / max(1, took))
        for group in sets:
            into.gaps_ns += group.gaps_ns()

    def _last_span_ns(self) -> int:
        return max((span.end_ns for span in self._board.trace(0)), default=0)

    def _overlap(self, mode: str, first_job: int, since_ns: int) -> Check:
        """Per bank, on the chip where it is least. A board that shows no bank of its choice is judged as a whole."""
        asked = {job: bank for job, bank in self._driver.jobs.items() if job >= first_job}
        seen_spans = [span for span in self._board.trace(since_ns) if span.job in asked]
        self.spans += seen_spans
        chips = measure_overlap(seen_spans, asked)
        seen = {bank for chip in chips.values() for bank in chip.busy_ns}
        banks = (Bank.AUTO,) if mode == "auto" and Bank.AUTO in seen else (Bank.PING, Bank.PONG)
        figures: dict[str, Figure] = {
            f"{bank.name.lower()}_share": round(min((chip.share(bank) for chip in chips.values()), default=0.0), 4)
            for bank in banks
        }
        least = min(float(value) for value in figures.values())
        bound = f"at least {OVERLAP_MIN:.0%} of each bank's working time shared with the other's job"
        return Check(f"overlap_{mode}", least >= OVERLAP_MIN, bound, figures)

    def _sets(self, banks: Sequence[Bank], salt: int) -> list[SequenceSet]:
        """Two sets whose prompts differ from the first token on, as long as the vocabulary has other tokens."""
        length, vocab = self._options.prompt_tokens, self._package.vocab_size
        sets = []
        for number, (lanes, bank) in enumerate(zip(self._lanes, banks, strict=True)):
            prompts = tuple(
                tuple((2 + 37 * (salt + number) + 11 * lane + 5 * i) % vocab for i in range(length)) for lane in lanes
            )
            sets.append(SequenceSet(lanes, prompts, bank))
        return sets


def _pairs(sets: Sequence[SequenceSet], alone: Sequence[list[list[int]]]) -> list[tuple[int, list[int], list[int]]]:
    """(lane, tokens alone, tokens in turn) of every sequence."""
    return [
        (lane, expected, found)
        for group, outputs in zip(sets, alone, strict=True)
        for lane, expected, found in zip(group.lanes, outputs, group.outputs, strict=True)
    ]


def _speed_checks(mode: str, two: _Timed, way: str, one: _Timed) -> tuple[Check, Check]:
    gain = two.rate / one.rate
    ratio = two.p99_ns / max(1, one.p99_ns)
    gain_figures: dict[str, Figure] = {
        "ratio": round(gain, 4),
        "two_tokens_per_s": round(two.rate, 3),
        "one_tokens_per_s": round(one.rate, 3),
        "one_is": "all rows in one job" if way == "one_job" else "the sets in turn",
    }
    tpot_figures: dict[str, Figure] = {"ratio": round(ratio, 4), "two_p99_ns": two.p99_ns, "one_p99_ns": one.p99_ns}
    return (
        Check(f"gain_{mode}", gain >= GAIN_MIN, f"at least {GAIN_MIN:.2f} times the tokens/s", gain_figures),
        Check(f"tpot_{mode}", ratio <= TPOT_MAX, f"at most {TPOT_MAX:.2f} times the P99 TPOT", tpot_figures),
    )
