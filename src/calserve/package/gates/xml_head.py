"""Whether a graph's file begins as an intermediate representation does: XML, at once its root `net`.

Owns the first bytes only. Must not know what is in a graph. A document type comes before the root or nowhere, so a file
whose root has begun declares no entities.
"""

from __future__ import annotations

import re
from typing import Final

HEAD_BYTES = 1024
_HEAD: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?:<\?xml[ \t\r\n][^<>?]{0,200}\?>)?[ \t\r\n]{0,200}<net[ \t\r\n/>]")


def head_complaint(head: bytes) -> str:
    """What is wrong with a file that begins with `head`, as a verb phrase; empty when nothing is."""
    if _HEAD.match(head):
        return ""
    return f"is no graph in XML: it begins with {head[:24]!r}"
