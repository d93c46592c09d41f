"""What a soak on real time was asked to do, and the bounds it goes by.

Owns the numbers of `WallOptions` and their checks. Must not know how a soak runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BOARDS = ("sim", "openvino")
MAX_MINUTES = 7 * 24 * 60
MAX_RATE = 1000.0
# Requests a second that each board keeps up with: 16 lanes of 17 ms steps, and a small model on two cores.
RATES = {"sim": 20.0, "openvino": 4.0}


class SoakError(Exception):
    """The soak cannot be run as asked; `str()` is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WallOptions:
    """A soak on real time.

    out: a directory for `soak-wall.json`, `soak-wall.svg` and the server's log; made if missing.
    board: "sim", or "openvino" with `model`, the directory of a package whose numerics are exact.
    rate: requests a second, on average; the board's own of `RATES` when None.
    deadline_ms: the server's deadline, short enough that long requests miss it.
    board_profile, fault_plan, chips: as for `serve`; without a plan one is drawn from the seed.
    has_faults: False runs the simulated board without a plan of ours.
    serve_args: more arguments of `serve`, such as ("--set", "batch.batching_window_us=500").
    """

    out: Path
    minutes: float
    board: str = "sim"
    model: Path | None = None
    seed: int = 1
    rate: float | None = None
    deadline_ms: int = 4000
    board_profile: str | None = None
    fault_plan: Path | None = None
    has_faults: bool = True
    chips: int | None = None
    serve_args: tuple[str, ...] = ()

    @property
    def requests_per_s(self) -> float:
        return RATES.get(self.board, 1.0) if self.rate is None else self.rate

    def check(self) -> None:
        """Raises SoakError naming the first thing that cannot be."""
        problems = (
            (self.board not in BOARDS, f"There is no board {self.board!r} to soak; there are {' and '.join(BOARDS)}."),
            (self.board == "openvino" and self.model is None, "--model needs a package directory for board openvino."),
            (
                self.board == "sim" and self.model is not None,
                "--model is for board openvino; a sim board makes its own.",
            ),
            (
                self.board != "sim" and (self.board_profile is not None or self.fault_plan is not None),
                "--board-profile and --fault-plan are for the simulated board; use them with --board sim.",
            ),
            (not 0 < self.minutes <= MAX_MINUTES, f"--minutes must be in 0..{MAX_MINUTES}, not {self.minutes}."),
            (
                not 0 < self.requests_per_s <= MAX_RATE,
                f"--rate must be in 0..{MAX_RATE:.0f} requests a second, not {self.requests_per_s}.",
            ),
            (self.seed < 0, f"--seed must be 0 or more, not {self.seed}."),
            (self.deadline_ms < 100, f"--deadline-ms must be 100 or more, not {self.deadline_ms}."),
        )
        for is_wrong, sentence in problems:
            if is_wrong:
                raise SoakError(sentence)
