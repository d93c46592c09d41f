"""Gates A to F: what a package must be before anything else may look at it.

Owns the rules as data (`rules`), one module a gate, their order (`run`) and the report (`verdict`). Must not know who
asks, nor any board: one is handed in as a `BoardTrial`. A package is hostile input here: whatever lies in it gives
findings, in bounded time and memory, and nothing of it is executed.
"""

from calserve.package.gates.finding import Finding
from calserve.package.gates.rules import GATES, RULES, Rule
from calserve.package.gates.run import How, Inspection, inspect
from calserve.package.gates.verdict import Verdict, verdict_of

__all__ = ["GATES", "RULES", "Finding", "How", "Inspection", "Rule", "Verdict", "inspect", "verdict_of"]
