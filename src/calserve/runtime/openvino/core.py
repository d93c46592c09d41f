"""The library's root object, made so that it leaves nothing behind on the thread that makes it.

Must not know sessions.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from calserve.signal_stack import keeping_signal_stack


def new_core(device: str) -> Any:
    """An `openvino.Core` with the plug-in of `device` loaded; without it where there is none, as compiling will say."""
    import openvino as ov

    with keeping_signal_stack():
        core = ov.Core()
        with suppress(RuntimeError):
            core.get_property(device, "FULL_DEVICE_NAME")
        return core
