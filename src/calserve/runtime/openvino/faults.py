"""OpenVINO's exceptions as CalRT codes.

Owns: the mapping and the board's last fault text. Must not know: sessions. OpenVINO has one exception type,
so the words of its text decide where they are unmistakable; everything else gets the code of its stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from calserve.runtime.contract import Code
from calserve.runtime.errors import CalCode

_DETAIL_MAX = 600  # characters kept of a text that may quote a whole graph

_STAGE_DEFAULT = {
    "read": CalCode.INVALID_CALBIN,
    "compile": CalCode.INVALID_CALBIN,
    "allocate": CalCode.MEMORY_ALLOCATION,
    "submit": CalCode.DEVICE_CRASH,
    "wait": CalCode.DEVICE_CRASH,
}

_WORDS = (
    ("bad_alloc", CalCode.MEMORY_ALLOCATION),
    ("out of memory", CalCode.MEMORY_ALLOCATION),
    ("Cannot allocate", CalCode.MEMORY_ALLOCATION),
    ("not registered in the OpenVINO Runtime", CalCode.DEVICE_UNAVAILABLE),
    ("Device with", CalCode.DEVICE_UNAVAILABLE),
    ("Infer Request is busy", CalCode.DEVICE_BUSY),
    ("proc_type_table", CalCode.DEVICE_UNAVAILABLE),  # every core is set aside for another chip
)


@dataclass(slots=True)
class FaultLog:
    """What the board last complained about. `broken` until a reset: a job died on the device."""

    broken: bool = False
    detail: str = ""
    resets: int = 0
    _seen: int = field(default=0)

    def note(self, stage: str, error: BaseException | str, code: Code = 0) -> Code:
        """Record a fault and give its code: `code` where the caller knows it, else judged from the text."""
        text = f"{stage}: {error}"[:_DETAIL_MAX]
        self.detail = " ".join(text.split())
        self._seen += 1
        code = code or _judge(stage, error)
        if stage in ("submit", "wait") and code == CalCode.DEVICE_CRASH:
            self.broken = True
        return int(code)


def _judge(stage: str, error: BaseException | str) -> CalCode:
    if isinstance(error, MemoryError):
        return CalCode.MEMORY_ALLOCATION
    if isinstance(error, FileNotFoundError):
        return CalCode.FILE_NOT_FOUND
    text = str(error)
    for words, code in _WORDS:
        if words in text:
            return code
    return _STAGE_DEFAULT[stage]
