"""The oracle of the simulation: what must hold, worked out a second time from what can be seen from outside.

Owns: invariants I1 to I12 of the design, restated over three accounts: what clients submitted, what streams received,
and what the board says it did. Must not know, and does not import, the core, the executor or the sampler: a mistake
they share would be no mistake to it. Life: made for a run with the run's public configuration, told everything in
the order of time, asked now and then (`check`) and at the end (`finish`); what it found stands in `violations`.
"""

from calserve.simulate.oracle.findings import Violation
from calserve.simulate.oracle.oracle import Oracle
from calserve.simulate.oracle.world import ClientRequest, World

__all__ = ["ClientRequest", "Oracle", "Violation", "World"]
