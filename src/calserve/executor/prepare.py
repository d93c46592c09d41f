"""The checks before a board is touched, in the order of seed 003, section 6.3.

Pure: looks at a job, its graph and the ids its rows will be given; says what is wrong or nothing. What does not change
from job to job (items 5 and 6: names, types, shapes, bytes) is checked once per set of buffers, when it is allocated;
slices, CSRs and maps (items 6 to 8) by the encoder, each before or as it is done.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from calserve.core.job import JobSpec
from calserve.core.outcomes import Failure, FaultClass
from calserve.runtime.checks import KvRoom, check_job, check_tokens
from calserve.runtime.contract import GraphContract


def check_prepared(contract: GraphContract, spec: JobSpec, room: KvRoom, tokens: Many[Many[int]]) -> Failure | None:
    """The first thing wrong with `spec` on this graph, or None. `core` plans within these limits, so it is a bug."""
    wrong = check_job(contract, spec, room) or check_tokens(contract, spec, tokens)
    return None if wrong is None else Failure("prepare", wrong[0], FaultClass.PROGRAMMING, wrong[1])
