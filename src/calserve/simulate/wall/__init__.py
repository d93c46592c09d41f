"""The real server on real time, under open-loop traffic that misbehaves, and a verdict on what it did.

Owns: starting `calserve serve` as a user would, the schedule of requests, the client that carries them out and goes
away, stalls and cancels, the judgement of every answer, the samples of the process, and the record. Must not know the
server's insides: all it sees is HTTP, `/metrics` and `/proc`. Life of a run: the server is started, references are
taken, traffic runs for its minutes while one sample a second is kept, goldens are asked, the server is told to end,
the verdict is written.
"""

from calserve.simulate.wall.options import SoakError, WallOptions
from calserve.simulate.wall.report import WallReport, print_report
from calserve.simulate.wall.run import run_wall_soak

__all__ = ["SoakError", "WallOptions", "WallReport", "print_report", "run_wall_soak"]
