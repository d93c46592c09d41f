"""The scheduler's configuration of an era, from what its plan says.

Owns: the tenants of a run, and which figure of a plan is which of the scheduler's. Must not know: boards, clients.
"""

from __future__ import annotations

from types import MappingProxyType

from calserve.core.config import SchedulerConfig, TenantPolicy
from calserve.simulate.plan import Era, ServerPlan

WEIGHTS = {"alpha": 3, "beta": 1, "gamma": 2}


def _policy(weight: int, server: ServerPlan) -> TenantPolicy:
    if not server.has_tenant_limits:
        return TenantPolicy(weight)
    return TenantPolicy(weight, max_active_requests=5, max_waiting_requests=12, max_waiting_prompt_tokens=1500)


def config_of(era: Era) -> SchedulerConfig:
    """What the server of `era` is configured with."""
    server = era.server
    return SchedulerConfig(
        max_in_flight=server.max_in_flight,
        fixed_engine=server.fixed_engine,
        max_waiting_requests=server.max_waiting_requests,
        max_waiting_prompt_tokens=server.max_waiting_prompt_tokens,
        batching_window_ns=server.batching_window_ns,
        prefill_chunk_tokens=server.prefill_chunk_tokens,
        restart_on_unknown_dma=server.restart_on_unknown_dma,
        max_resets=server.max_resets,
        reset_window_ns=server.reset_window_ns,
        execution_deadline_floor_ns=server.execution_deadline_floor_ns,
        overdue_grace_ns=server.overdue_grace_ns,
        queue_deadline_ns=server.queue_deadline_ns,
        recovery_drain_ns=server.recovery_drain_ns,
        deadline_default_ns=server.deadline_default_ns,
        tenant_lane_share_percent=server.tenant_lane_share_percent,
        short_prefill_max_tokens=24,
        medium_prefill_max_tokens=96,
        lifecycle_deadline_ns=server.lifecycle_deadline_ns,
        tenants=MappingProxyType({name: _policy(weight, server) for name, weight in WEIGHTS.items()}),
    )
