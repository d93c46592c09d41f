"""Every mutant of the soak."""

from __future__ import annotations

from mutants_core import CORE_MUTANTS
from mutants_executor import EXECUTOR_MUTANTS

MUTANTS = CORE_MUTANTS + EXECUTOR_MUTANTS
