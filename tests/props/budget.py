"""How many examples a machine takes: its usual number, scaled by the profile that Hypothesis was started with."""

from __future__ import annotations

from hypothesis import settings

_PROFILE_USUAL = 100  # of Hypothesis's default profile


def examples(usual: int) -> int:
    """Under `--hypothesis-profile fuzz` as many times more as that profile has examples."""
    return max(1, usual * settings().max_examples // _PROFILE_USUAL)
