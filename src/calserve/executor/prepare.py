"""The checks before a board is touched, in the order of seed 003, section 6.3.

Pure: looks at a job, its contract and the sequences' lengths; says what is wrong or nothing.
"""

from __future__ import annotations

from calserve.core.board import GraphProfile, RowBinding
from calserve.core.job import JobSpec
from calserve.runtime.contract import GraphContract


def check_job(contract: GraphContract, spec: JobSpec) -> str:
    """One sentence naming the first thing wrong with `spec` on this graph, or ""."""
    profile = contract.profile
    return _check_rows(profile, spec) or _check_lanes(profile, spec)


def _check_rows(profile: GraphProfile, spec: JobSpec) -> str:
    if not spec.rows:
        return "the job has no rows"
    total = 0
    for row in spec.rows:
        if row.token_count < 1:
            return f"row of {row.request} has {row.token_count} tokens"
        if row.first_position + row.token_count > profile.max_tokens:
            return (
                f"row of {row.request} ends at {row.first_position + row.token_count}, "
                f"the graph addresses {profile.max_tokens}"
            )
        if row.token_count > profile.max_row_tokens:
            return f"row of {row.request} has {row.token_count} tokens, a row takes {profile.max_row_tokens}"
        total += row.token_count
    if total > profile.max_job_tokens:
        return f"the job has {total} tokens, the graph takes {profile.max_job_tokens}"
    if len(spec.rows) > profile.batch:
        return f"the job has {len(spec.rows)} rows, the graph has {profile.batch}"
    if spec.task not in profile.tasks:
        return f"graph {profile.name} cannot {spec.task.value}"
    return ""


def _check_lanes(profile: GraphProfile, spec: JobSpec) -> str:
    lanes = {row.lane for row in spec.rows}
    if len(lanes) != len(spec.rows):
        return "two rows name one lane"
    if profile.row_binding is RowBinding.FIXED and max(lanes) >= profile.batch:
        return f"lane {max(lanes)} is beyond the graph's {profile.batch} rows"
    return ""
