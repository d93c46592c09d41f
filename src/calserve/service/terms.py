"""The values the service answers with, for the ring above.

`api` imports `service` only. The words a client's answer is made of are `core`'s and the executor's; they are
handed on here, so that one import list shows what `api` can see of the rings below.
"""

from __future__ import annotations

from calserve.core.events import CancelCause
from calserve.core.outcomes import Failure, FaultClass, FinishReason, Refusal, RefusalKind, Usage
from calserve.core.snapshot import EngineSnapshot
from calserve.executor.messages import Delivery, Ending
from calserve.sampling.params import InvalidParameter, SamplingParams, parse_sampling
from calserve.sampling.sampler import Choice

__all__ = [
    "CancelCause",
    "Choice",
    "Delivery",
    "Ending",
    "EngineSnapshot",
    "Failure",
    "FaultClass",
    "FinishReason",
    "InvalidParameter",
    "Refusal",
    "RefusalKind",
    "SamplingParams",
    "Usage",
    "parse_sampling",
]
