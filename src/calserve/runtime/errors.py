"""CalRT's return codes 0-29: what each is called, whose fault it is, and what follows from it.

Owns: the one table of seed 003, section 8. Must not know: any board, request or session. A code that the seed
does not name (3, 6, 26, anything outside 0-29) is UNKNOWN, and an unknown failure counts as the worst: the
generation is treated as polluted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType

from calserve.core.outcomes import Failure, FaultClass


class CalCode(IntEnum):
    """The codes that have a name. Values are CalRT's; the gaps (3, 6, 26) are the seed's."""

    SUCCESS = 0
    MEMORY_ALLOCATION = 1
    ALREADY_REGISTERED = 2
    INVALID_VALUE = 4
    INVALID_CONFIG = 5
    ALREADY_CONFIGURED = 7
    DRIVER_INCOMPATIBLE = 8
    RUNTIME_TOO_OLD = 9
    FILE_NOT_FOUND = 10
    FILE_OPEN = 11
    FILE_READ = 12
    TIMEOUT = 13
    OUT_OF_RANGE = 14
    UNEXPECTED = 15
    NO_CONFIG = 16
    DEVICE_BUSY = 17
    DEVICE_UNAVAILABLE = 18
    INVALID_CALBIN = 19
    UNKNOWN = 20
    DTYPE_MISMATCH = 21
    SHAPE_MISMATCH = 22
    DEPENDENCY = 23
    MAP_BROKEN = 24
    SOFT_RESET_FAILED = 25
    NOT_SUPPORTED = 27
    DEVICE_CRASH = 28
    WRONG_DIRECTION = 29


class JobEffect(Enum):
    NONE = "none"
    FAIL = "fail"
    FAIL_OR_REQUEUE = "fail, or queue again if it was not submitted"


class AdmissionEffect(Enum):
    GO_ON = "goes on"
    GO_ON_OR_ISOLATE = "goes on for the model, or its artifact is isolated"
    PAUSE = "pauses"
    REFUSE_GENERATION = "this generation takes nothing more"
    STOP = "stops"
    REDUCE = "is reduced"
    STOP_AT_ONCE = "stops at once"
    FEATURE_OFF = "goes on without the feature"


class Recovery(Enum):
    NONE = "none"
    RECORD = "record the difference to the manifest; no reset"
    DRAIN_AND_CHECK = "drain, check generation and configuration"
    ROLL_BACK = "roll back to the last good package"
    HUMAN = "a person repairs it; no automatic retry"
    BACK_OFF = "bounded back-off; drain at the threshold"
    QUARANTINE_AND_RESET = "quarantine, then reset, restart or escalate"
    FIX_CODE = "no reset; the code or configuration is wrong"
    TREAT_AS_POLLUTED = "treat the device generation as polluted"


@dataclass(frozen=True, slots=True)
class CodeMeaning:
    """One row of the table. `fault` is None for success only."""

    name: str
    fault: FaultClass | None
    job: JobEffect
    admission: AdmissionEffect
    recovery: Recovery


_Effects = tuple[FaultClass, JobEffect, AdmissionEffect, Recovery]

_REQUEST: _Effects = (
    FaultClass.REQUEST,
    JobEffect.FAIL,
    AdmissionEffect.GO_ON_OR_ISOLATE,
    Recovery.RECORD,
)
_LIFECYCLE: _Effects = (
    FaultClass.LIFECYCLE,
    JobEffect.FAIL,
    AdmissionEffect.PAUSE,
    Recovery.DRAIN_AND_CHECK,
)
_ARTIFACT: _Effects = (
    FaultClass.ARTIFACT,
    JobEffect.FAIL,
    AdmissionEffect.REFUSE_GENERATION,
    Recovery.ROLL_BACK,
)
_COMPATIBILITY: _Effects = (
    FaultClass.COMPATIBILITY,
    JobEffect.FAIL,
    AdmissionEffect.STOP,
    Recovery.HUMAN,
)
_TRANSIENT: _Effects = (
    FaultClass.TRANSIENT,
    JobEffect.FAIL_OR_REQUEUE,
    AdmissionEffect.REDUCE,
    Recovery.BACK_OFF,
)
_DEVICE: _Effects = (
    FaultClass.DEVICE,
    JobEffect.FAIL,
    AdmissionEffect.STOP_AT_ONCE,
    Recovery.QUARANTINE_AND_RESET,
)
_PROGRAMMING: _Effects = (
    FaultClass.PROGRAMMING,
    JobEffect.FAIL,
    AdmissionEffect.FEATURE_OFF,
    Recovery.FIX_CODE,
)
_UNKNOWN: _Effects = (
    FaultClass.UNKNOWN,
    JobEffect.FAIL,
    AdmissionEffect.PAUSE,
    Recovery.TREAT_AS_POLLUTED,
)

CODES: Mapping[int, CodeMeaning] = MappingProxyType(
    {
        0: CodeMeaning("success", None, JobEffect.NONE, AdmissionEffect.GO_ON, Recovery.NONE),
        1: CodeMeaning("memory allocation failed", *_REQUEST),
        2: CodeMeaning("already registered", *_LIFECYCLE),
        3: CodeMeaning("code 3, unnamed", *_UNKNOWN),
        4: CodeMeaning("invalid value", *_ARTIFACT),
        5: CodeMeaning("invalid configuration", *_ARTIFACT),
        6: CodeMeaning("code 6, unnamed", *_UNKNOWN),
        7: CodeMeaning("already configured", *_LIFECYCLE),
        8: CodeMeaning("driver incompatible", *_COMPATIBILITY),
        9: CodeMeaning("runtime too old", *_COMPATIBILITY),
        10: CodeMeaning("file not found", *_ARTIFACT),
        11: CodeMeaning("file cannot be opened", *_ARTIFACT),
        12: CodeMeaning("file cannot be read", *_ARTIFACT),
        13: CodeMeaning("timeout", *_TRANSIENT),
        14: CodeMeaning("out of range", *_REQUEST),
        15: CodeMeaning("unexpected", *_UNKNOWN),
        16: CodeMeaning("not configured", *_LIFECYCLE),
        17: CodeMeaning("device busy", *_TRANSIENT),
        18: CodeMeaning("device unavailable", *_DEVICE),
        19: CodeMeaning("invalid calbin", *_ARTIFACT),
        20: CodeMeaning("unknown error", *_UNKNOWN),
        21: CodeMeaning("dtype mismatch", *_REQUEST),
        22: CodeMeaning("shape mismatch", *_REQUEST),
        23: CodeMeaning("dependency error", *_COMPATIBILITY),
        24: CodeMeaning("memory map broken", *_DEVICE),
        25: CodeMeaning("soft reset failed", *_DEVICE),
        26: CodeMeaning("code 26, unnamed", *_UNKNOWN),
        27: CodeMeaning("not supported", *_PROGRAMMING),
        28: CodeMeaning("device crash", *_DEVICE),
        29: CodeMeaning("wrong direction", *_PROGRAMMING),
    }
)


def meaning(code: int) -> CodeMeaning:
    """The row of `code`; a code outside the table gets the row of an unknown failure."""
    return CODES.get(code) or CodeMeaning(f"code {code}, unnamed", *_UNKNOWN)


def classify(code: int) -> FaultClass:
    """Class of a failure. Success has none: asking for it is a bug in the caller."""
    fault = meaning(code).fault
    assert fault is not None, "code 0 is not a failure"
    return fault


def failure(stage: str, code: int, detail: str = "") -> Failure:
    """A failure as it is recorded. stage: where the code came up (`configure`, `submit`, `wait`, ...)."""
    return Failure(stage=stage, code=int(code), fault=classify(code), detail=detail or meaning(code).name)
