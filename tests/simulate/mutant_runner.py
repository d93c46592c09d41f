"""Runs plans of the soak over the source tree it is told; prints what the oracle said first. Started by the tests.

Usage: python -O mutant_runner.py SOURCE PLANS. PLANS is a file: a JSON list of `RunPlan`. A line for each plan:
`seed N: clean`, or `seed N: ` and the first violation, and then no plan is run any more. Exit code 0: every plan was
clean; 3: one was not.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path


def main() -> int:
    source, plans = sys.argv[1:]
    sys.path.insert(0, source)
    import msgspec

    from calserve import simulate
    from calserve.simulate.plan import RunPlan
    from calserve.simulate.run import Run

    if Path(source).resolve() not in Path(simulate.__file__).resolve().parents:
        raise RuntimeError(f"calserve comes from {simulate.__file__}, not from {source}")
    logging.disable(logging.CRITICAL)
    for plan in msgspec.json.decode(Path(plans).read_bytes(), type=list[RunPlan]):
        # check_every 0: the core's own invariants are not scanned, and -O has taken its assertions out
        result = Run(plan, check_every=0).run()
        if result.violation_count:
            print(f"seed {plan.seed}: {result.violations[0]}")
            return 3
        print(f"seed {plan.seed}: clean", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
