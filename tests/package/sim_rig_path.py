"""The simulated board's rig, for tests of packages that it runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "simulate"))

from sim_rig import Rig

__all__ = ["Rig"]
