"""The core rig is shared: `tests/core/core_rig.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
