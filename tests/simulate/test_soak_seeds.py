"""Two hundred short runs: none fails, and together they take every rare path under real load."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak_rig import QUIET

from calserve.simulate.plan import MINUTE
from calserve.simulate.soak import SoakOptions, soak


@pytest.mark.slow
def test_two_hundred_seeds_are_clean_and_together_take_every_rare_path(tmp_path: Path) -> None:
    """As `make sim` runs them."""
    options = SoakOptions(
        seed=1, duration_ns=4 * MINUTE, seeds=200, jobs=2, min_requests=100, records=tmp_path, is_shrunk=False
    )
    report = soak(options, QUIET)
    assert report.failed == []
    assert report.weak == []
    assert report.tally.runs == len(set(report.digests.values())) == 200
    assert list(tmp_path.iterdir()) == []
