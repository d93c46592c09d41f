"""What each class of failure does, as data: the one table of seed 003, section 8, that the engine acts on.

Owns: for every class what becomes of the job, of admission, of the generation, and what follows, by where the failure
came up. Must not know: raw codes; `runtime.errors` sorts them into classes and says nothing of effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from calserve.core.outcomes import FaultClass, FinishReason


class JobEffect(Enum):
    """Column "current job"."""

    FAIL = "fails"
    FAIL_OR_REQUEUE = "fails, or waits and goes again where it was not submitted"


class AdmissionEffect(Enum):
    """Column "new admission"."""

    GO_ON = "goes on for the same model"
    PAUSE = "pauses"
    REFUSE_GENERATION = "this generation takes nothing more"
    STOP = "stops"
    REDUCE = "is reduced: nobody new gets a lane while a back-off is armed"
    STOP_AT_ONCE = "stops at once"
    FEATURE_OFF = "goes on without the feature"


class Recovery(Enum):
    """Column "automatic action"."""

    RECORD = "record the difference to the manifest; no reset"
    DRAIN_AND_CHECK = "drain, then the package is checked and configured again; no reset"
    ROLL_BACK = "roll back to the last package that was good"
    HUMAN = "a person repairs it; no automatic retry"
    BACK_OFF = "bounded back-off; drain at the threshold"
    QUARANTINE_AND_RESET = "quarantine, then reset, restart or escalate"
    FIX_CODE = "the code or configuration is wrong; no reset"
    TREAT_AS_POLLUTED = "the device generation counts as polluted: reset"


class Aftermath(Enum):
    """What follows for the generation. Ordered by nothing: see `core.session` for what each starts."""

    CARRY_ON = "carry_on"  # only this job's requests suffer
    RETRY = "retry"  # the same again after a bounded back-off; past the bound it is a REBUILD
    DRAIN_AND_REBUILD = "drain_and_rebuild"  # admitted requests may end first, within the bound
    REBUILD = "rebuild"  # nothing more is submitted; released, configured and warmed again, without a reset
    RESET = "reset"  # nothing more is submitted; what the device holds counts as polluted
    REFUSE = "refuse"  # this package is refused; the last good one comes back where there is another
    STOP = "stop"  # failed; no automatic retry


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One row. job, admission, recovery: the seed's columns.

    end: how the job's requests end. may_restart: those whose client has seen nothing are queued again, once.
    refused: a job that never reached the device. Its rows stand as before, so what refused them would refuse them
        again: no rule lets the same rows go at once.
    failed: a job that came back bad. Its lanes stay fenced until the generation is rebuilt.
    again: a rebuild is asked for again within the window. Where the row says "no reset" nothing is reset for it: the
        generation fails, and where the artifact is to blame the last good one comes back.
    ordered: a validate, configure or warm order that did not succeed. (A release that fails leaves unknown what is
        held, and a reset that fails has ended nothing; both are the same for every class, see `core.resets`.)
    """

    job: JobEffect
    admission: AdmissionEffect
    recovery: Recovery
    end: FinishReason
    may_restart: bool
    refused: Aftermath
    failed: Aftermath
    ordered: Aftermath
    again: Aftermath


_A = Aftermath

FAULT_RULES: Mapping[FaultClass, FaultRule] = MappingProxyType(
    {
        FaultClass.REQUEST: FaultRule(
            JobEffect.FAIL,
            AdmissionEffect.GO_ON,
            Recovery.RECORD,
            end=FinishReason.INTERNAL,
            may_restart=False,
            refused=_A.CARRY_ON,
            failed=_A.CARRY_ON,
            ordered=_A.REFUSE,  # no request is involved: the artifact is what is isolated
            again=_A.REFUSE,
        ),
        FaultClass.LIFECYCLE: FaultRule(
            JobEffect.FAIL,
            AdmissionEffect.PAUSE,
            Recovery.DRAIN_AND_CHECK,
            end=FinishReason.DEVICE_FAULT,
            may_restart=True,
            refused=_A.REBUILD,
            failed=_A.DRAIN_AND_REBUILD,
            ordered=_A.REBUILD,
            again=_A.STOP,
        ),
        FaultClass.ARTIFACT: FaultRule(
            JobEffect.FAIL,
            AdmissionEffect.REFUSE_GENERATION,
            Recovery.ROLL_BACK,
            end=FinishReason.INTERNAL,
            may_restart=False,
            refused=_A.REFUSE,
            failed=_A.REFUSE,
            ordered=_A.REFUSE,
            again=_A.REFUSE,
        ),
        FaultClass.COMPATIBILITY: FaultRule(
            JobEffect.FAIL,
            AdmissionEffect.STOP,
            Recovery.HUMAN,
            end=FinishReason.INTERNAL,
            may_restart=False,
            refused=_A.STOP,
            failed=_A.STOP,
            ordered=_A.STOP,
            again=_A.STOP,
        ),
        FaultClass.TRANSIENT: FaultRule(
            JobEffect.FAIL_OR_REQUEUE,
            AdmissionEffect.REDUCE,
            Recovery.BACK_OFF,
            end=FinishReason.DEVICE_FAULT,
            may_restart=True,
            refused=_A.RETRY,
            failed=_A.RETRY,
            ordered=_A.RETRY,
            again=_A.RESET,
        ),
        FaultClass.DEVICE: FaultRule(
            JobEffect.FAIL,
            AdmissionEffect.STOP_AT_ONCE,
            Recovery.QUARANTINE_AND_RESET,
            end=FinishReason.DEVICE_FAULT,
            may_restart=True,
            refused=_A.RESET,
            failed=_A.RESET,
            ordered=_A.RESET,
            again=_A.RESET,
        ),
        FaultClass.PROGRAMMING: FaultRule(
            JobEffect.FAIL,
            AdmissionEffect.FEATURE_OFF,
            Recovery.FIX_CODE,
            end=FinishReason.INTERNAL,
            may_restart=False,
            refused=_A.CARRY_ON,
            failed=_A.CARRY_ON,
            ordered=_A.REFUSE,
            again=_A.STOP,
        ),
        FaultClass.UNKNOWN: FaultRule(
            JobEffect.FAIL,
            AdmissionEffect.PAUSE,
            Recovery.TREAT_AS_POLLUTED,
            end=FinishReason.DEVICE_FAULT,
            may_restart=True,
            refused=_A.RESET,
            failed=_A.RESET,
            ordered=_A.RESET,
            again=_A.RESET,
        ),
    }
)

_RESETS = frozenset({Recovery.QUARANTINE_AND_RESET, Recovery.TREAT_AS_POLLUTED})


def needs_reset(fault: FaultClass) -> bool:
    """Whether what the device holds is in doubt. Otherwise a generation is rebuilt without one."""
    return FAULT_RULES[fault].recovery in _RESETS
