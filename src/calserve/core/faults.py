"""What each class of failure does (seed 003, section 8), as data.

Owns: the table from a class to the end of the job's requests and to what follows for the generation. Must not
know: raw codes; `runtime.errors` sorts them into classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from calserve.core.outcomes import FaultClass, FinishReason


class Aftermath(Enum):
    CARRY_ON = "carry_on"  # only this job's requests suffer
    RETRY = "retry"  # bounded backoff; past the bound, RECOVER
    DRAIN_AND_RECOVER = "drain_and_recover"  # admitted requests may end first, within the bound
    RECOVER = "recover"  # nothing more is submitted to this generation
    FAIL = "fail"  # the generation is refused; no automatic retry


@dataclass(frozen=True, slots=True)
class FaultRule:
    """end: how the job's requests end. may_restart: those that sent nothing are queued again, once. then: what
    the class means for the generation; `after_refusal` and `after_failure` say what it comes to for a job."""

    end: FinishReason
    may_restart: bool
    then: Aftermath


FAULT_RULES: Mapping[FaultClass, FaultRule] = {
    FaultClass.REQUEST: FaultRule(FinishReason.INTERNAL, False, Aftermath.CARRY_ON),
    FaultClass.LIFECYCLE: FaultRule(FinishReason.DEVICE_FAULT, True, Aftermath.DRAIN_AND_RECOVER),
    FaultClass.ARTIFACT: FaultRule(FinishReason.INTERNAL, False, Aftermath.FAIL),
    FaultClass.COMPATIBILITY: FaultRule(FinishReason.INTERNAL, False, Aftermath.FAIL),
    FaultClass.TRANSIENT: FaultRule(FinishReason.DEVICE_FAULT, True, Aftermath.RETRY),
    FaultClass.DEVICE: FaultRule(FinishReason.DEVICE_FAULT, True, Aftermath.RECOVER),
    FaultClass.PROGRAMMING: FaultRule(FinishReason.INTERNAL, False, Aftermath.CARRY_ON),
    FaultClass.UNKNOWN: FaultRule(FinishReason.DEVICE_FAULT, True, Aftermath.RECOVER),
}


def after_refusal(fault: FaultClass) -> Aftermath:
    """A job that never reached the device. Its rows stand as before, so what refused them would refuse them again:
    where the class wants a recovery nothing more is submitted, or the same rows would be refused without end."""
    then = FAULT_RULES[fault].then
    return Aftermath.RECOVER if then is Aftermath.DRAIN_AND_RECOVER else then


def after_failure(fault: FaultClass) -> Aftermath:
    """A job that came back bad. It left its lanes fenced, and only the next generation has them again."""
    then = FAULT_RULES[fault].then
    return Aftermath.DRAIN_AND_RECOVER if then in (Aftermath.CARRY_ON, Aftermath.RETRY) else then
