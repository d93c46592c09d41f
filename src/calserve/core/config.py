"""The scheduler's bounds: every number it obeys, with its unit and where it comes from.

Values without another note are those of seed 002, section 15. The file format lives in `service`; here are
only the checked numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """Set by the operator, never by a request. 0 means "no own limit"."""

    weight: int = 1
    max_active_requests: int = 0
    max_waiting_requests: int = 0
    max_waiting_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    # admission
    max_waiting_requests: int = 128
    max_waiting_prompt_tokens: int = 262_144
    deadline_default_ns: int = 120_000_000_000
    # queues: service opportunities decode:short:medium:long, and the length classes
    decode_weight: int = 8
    short_prefill_weight: int = 4
    medium_prefill_weight: int = 2
    long_prefill_weight: int = 1
    short_prefill_max_tokens: int = 512
    medium_prefill_max_tokens: int = 4096
    # long prefills admitted at once; ours: one, so that short ones are never all behind long ones
    max_active_long_prefills: int = 1
    # batch; None takes every profile the package has, a tuple must be a subset of them
    profiles: tuple[int, ...] | None = None
    batching_window_ns: int = 0
    # prompt tokens a step may carry beside decodes, where chunking is proven: bounds the inter-token gap. One step may
    # carry up to 8 times as many where that starts every waiting prompt (core/plan.py)
    prefill_chunk_tokens: int = 128
    # share of lanes one tenant may hold while another has ready work, in percent; ours
    tenant_lane_share_percent: int = 50
    # cost of one output token against one prompt token in the fair queue (seed 002, section 5.3)
    decode_cost_weight: int = 4
    # executor
    max_in_flight: int = 1
    fixed_engine: bool = False
    # a job is overdue after this many times its expected duration, and never before the floor
    execution_deadline_factor: int = 20
    execution_deadline_floor_ns: int = 10_000_000_000
    # queue deadline (seed 003, section 9.1): a job that is not with the board by then is not submitted any more; 0 is
    # none. Ours: far above any step, far below a client's patience
    queue_deadline_ns: int = 5_000_000_000
    # after an execution deadline: how long buffers are kept and waited on before recovery
    overdue_grace_ns: int = 5_000_000_000
    # transient refusals by the board (codes 13, 17): attempts before the session drains
    max_transient_retries: int = 8
    transient_backoff_ns: int = 5_000_000
    # a board that has no KV to give while we hold none of it: nobody's release can wake who waits, so it is asked
    # again after so long, and when somebody new arrives; ours
    kv_retry_ns: int = 5_000_000_000
    # recovery
    max_resets: int = 2
    reset_window_ns: int = 600_000_000_000
    # what Failed while it served is tried again after a window, at most so often in a row (core/comeback.py); 0 is
    # never; ours
    max_comebacks: int = 3
    restart_on_unknown_dma: bool = True
    # an order to validate, configure, warm, release or reset that has no answer by then never will have: a driver that
    # hangs must not keep a recovery from ending (I11). Ours: above the longest compile and golden run; 0 is none
    lifecycle_deadline_ns: int = 900_000_000_000
    # bound on the in-process drain a recovery may take
    recovery_drain_ns: int = 10_000_000_000
    tenants: Mapping[str, TenantPolicy] = field(default_factory=lambda: MappingProxyType({}))

    def tenant(self, name: str) -> TenantPolicy:
        """The policy of `name`, or the default one."""
        return self.tenants.get(name, _DEFAULT_TENANT)

    def backoff_ns(self, tries: int) -> int:
        """Pause after the so many-th transient refusal in a row: it doubles, and is never nothing, or the same would
        go again at the same instant."""
        return max(1, self.transient_backoff_ns) << (tries - 1)


_DEFAULT_TENANT = TenantPolicy()
