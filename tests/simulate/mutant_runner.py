"""Runs seeds of the soak over the source tree it is told; prints what the oracle said first. Started by the tests.

Usage: python -O mutant_runner.py SOURCE MINUTES SEED... Exit code 0: every seed was clean; 3: one was not.
"""

from __future__ import annotations

import sys


def main() -> int:
    source, minutes, *seeds = sys.argv[1:]
    sys.path.insert(0, source)
    from calserve.simulate.plan import MINUTE, draw_plan
    from calserve.simulate.run import Run

    for seed in map(int, seeds):
        # check_every 0: the core's own invariants are not scanned, and -O has taken its assertions out
        result = Run(draw_plan(seed, int(float(minutes) * MINUTE)), check_every=0).run()
        if result.violation_count:
            print(f"seed {seed}: {result.violations[0]}")
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
