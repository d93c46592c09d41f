"""CalRT's return codes 0-29: what each is called and whose fault it is.

Owns: the table from a code to its class (seed 003, section 8). Must not know: any board, request or session, nor what
follows from a class: that is said once, in `core.faults`, where it is acted on. A code that the seed does not name (3,
6, 26, anything outside 0-29) is UNKNOWN, and an unknown failure counts as the worst: the generation is treated as
polluted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from calserve.core.faults import FAULT_RULES, FaultRule
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


@dataclass(frozen=True, slots=True)
class CodeMeaning:
    """One row of the table. `fault` is None for success only; what follows from it is `core.faults.FAULT_RULES`."""

    name: str
    fault: FaultClass | None

    @property
    def rule(self) -> FaultRule | None:
        """What the engine does about it."""
        return FAULT_RULES[self.fault] if self.fault is not None else None


_F = FaultClass

CODES: Mapping[int, CodeMeaning] = MappingProxyType(
    {
        0: CodeMeaning("success", None),
        1: CodeMeaning("memory allocation failed", _F.REQUEST),
        2: CodeMeaning("already registered", _F.LIFECYCLE),
        3: CodeMeaning("code 3, unnamed", _F.UNKNOWN),
        4: CodeMeaning("invalid value", _F.ARTIFACT),
        5: CodeMeaning("invalid configuration", _F.ARTIFACT),
        6: CodeMeaning("code 6, unnamed", _F.UNKNOWN),
        7: CodeMeaning("already configured", _F.LIFECYCLE),
        8: CodeMeaning("driver incompatible", _F.COMPATIBILITY),
        9: CodeMeaning("runtime too old", _F.COMPATIBILITY),
        10: CodeMeaning("file not found", _F.ARTIFACT),
        11: CodeMeaning("file cannot be opened", _F.ARTIFACT),
        12: CodeMeaning("file cannot be read", _F.ARTIFACT),
        13: CodeMeaning("timeout", _F.TRANSIENT),
        14: CodeMeaning("out of range", _F.REQUEST),
        15: CodeMeaning("unexpected", _F.UNKNOWN),
        16: CodeMeaning("not configured", _F.LIFECYCLE),
        17: CodeMeaning("device busy", _F.TRANSIENT),
        18: CodeMeaning("device unavailable", _F.DEVICE),
        19: CodeMeaning("invalid calbin", _F.ARTIFACT),
        20: CodeMeaning("unknown error", _F.UNKNOWN),
        21: CodeMeaning("dtype mismatch", _F.REQUEST),
        22: CodeMeaning("shape mismatch", _F.REQUEST),
        23: CodeMeaning("dependency error", _F.COMPATIBILITY),
        24: CodeMeaning("memory map broken", _F.DEVICE),
        25: CodeMeaning("soft reset failed", _F.DEVICE),
        26: CodeMeaning("code 26, unnamed", _F.UNKNOWN),
        27: CodeMeaning("not supported", _F.PROGRAMMING),
        28: CodeMeaning("device crash", _F.DEVICE),
        29: CodeMeaning("wrong direction", _F.PROGRAMMING),
    }
)


def meaning(code: int) -> CodeMeaning:
    """The row of `code`; a code outside the table gets the row of an unknown failure."""
    return CODES.get(code) or CodeMeaning(f"code {code}, unnamed", _F.UNKNOWN)


def classify(code: int) -> FaultClass:
    """Class of a failure. Success has none: asking for it is a bug in the caller."""
    fault = meaning(code).fault
    assert fault is not None, "code 0 is not a failure"
    return fault


def failure(stage: str, code: int, detail: str = "") -> Failure:
    """A failure as it is recorded. stage: where the code came up (`configure`, `submit`, `wait`, ...)."""
    return Failure(stage=stage, code=int(code), fault=classify(code), detail=detail or meaning(code).name)
