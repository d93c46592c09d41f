"""What the oracle is told about the world of an era: public facts only, nothing of the server's insides.

Owns: how a plan and a board become the oracle's world. Must not know: what the oracle does with it.
"""

from __future__ import annotations

from types import MappingProxyType

from calserve.core.config import SchedulerConfig
from calserve.simulate.boards import MODEL_NAME, BoardParts
from calserve.simulate.oracle import Oracle, World
from calserve.simulate.plan import SECOND, Era

MODEL = "m"
_WARM_UP_NS = 8 * SECOND  # goldens and step times of the slowest profile, on virtual time


def make_oracle(era: Era, parts: BoardParts, config: SchedulerConfig) -> Oracle:
    """An oracle for one era."""
    profile, server = parts.profile, era.server
    host_ns = SECOND // 4 + era.pace.hiccup_ns * 4
    # a drain may end in an unload, whose bound is the operator's: the default deadline of a request
    drain_ns = max(server.recovery_drain_ns, server.deadline_default_ns) + server.overdue_grace_ns
    slow_ns = profile.timing.configure_ns + profile.timing.reset_ns
    # a bring-up may fail for now as often as is allowed, be reset as often as the budget has it, and wait for a sibling
    tries_ns = config.backoff_ns(config.max_transient_retries) * 2 + slow_ns + _WARM_UP_NS
    bring_up_ns = (server.max_resets + 2) * tries_ns + drain_ns
    if "order_unanswered" in era.oddities:  # it hangs for as long as it may, and a drain waits for its answer
        bring_up_ns += 2 * server.lifecycle_deadline_ns
        drain_ns += server.lifecycle_deadline_ns
    sessions = parts.options(server, era.board.sessions)
    return Oracle(
        World(
            models=MappingProxyType({MODEL: MODEL_NAME}),
            sessions=MappingProxyType(dict.fromkeys(sessions, MODEL)),
            vocab=parts.vocab,
            context=profile.context,
            lanes_per_session=profile.lanes,
            max_in_flight=server.max_in_flight,
            text_of=parts.text_of,
            host_slack_ns=host_ns,
            told_slack_ns=host_ns,
            cancel_slack_ns=host_ns,
            deadline_slack_ns=host_ns,
            batching_window_ns=server.batching_window_ns,
            backoff_bound_ns=config.backoff_ns(config.max_transient_retries) + host_ns,
            drain_bound_ns=drain_ns + slow_ns + 10 * SECOND,
            recovery_bound_ns=bring_up_ns,
            load_bound_ns=bring_up_ns,
            is_trouble_visible=not era.oddities and not era.keeps_device,
            job_bound_ns=_job_bound_ns(era, config) + host_ns,
            max_waiting_requests=server.max_waiting_requests,
            max_waiting_prompt_tokens=server.max_waiting_prompt_tokens,
            tenant_max_waiting_requests=MappingProxyType(
                {name: policy.max_waiting_requests for name, policy in config.tenants.items()}
            ),
            tenant_max_waiting_prompt_tokens=MappingProxyType(
                {name: policy.max_waiting_prompt_tokens for name, policy in config.tenants.items()}
            ),
            tenant_weights=MappingProxyType({name: policy.weight for name, policy in config.tenants.items()}),
            tenant_max_active=MappingProxyType(
                {name: policy.max_active_requests for name, policy in config.tenants.items()}
            ),
            decode_cost_weight=config.decode_cost_weight,
            tenant_lane_share_percent=config.tenant_lane_share_percent,
            medium_prefill_max_tokens=config.medium_prefill_max_tokens,
            graph_rows=MappingProxyType({g.name: g.profile.batch for g in parts.packages[0].graphs}),
        )
    )


def _job_bound_ns(era: Era, config: SchedulerConfig) -> int:
    """The longest execution deadline there can be, and the grace after it. A step is expected to take what it took in
    the warm-up, at most what it may take there; a prefill up to the context, some three times as long as the longest
    measured, behind another one in flight.
    """
    longest_ns = 3 * era.pace.warm_step_ns * config.max_in_flight
    deadline_ns = max(config.execution_deadline_floor_ns, config.execution_deadline_factor * longest_ns)
    return deadline_ns + config.overdue_grace_ns
