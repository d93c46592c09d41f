"""The core rig is shared: `tests/core/core_rig.py`. How many examples a machine takes follows the profile."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
