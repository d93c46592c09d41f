"""A file replaced in one piece: the new text or the old one, never half of it, and nothing left beside it.

A word every ring may use. Must not know: what a text is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write `text` (UTF-8) beside `path`, then put it in its place; its directory is made.

    Raises:
        OSError: naming `path`, whatever step failed; what was there before still is, and what was begun is not.
    """
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        error.filename, error.filename2 = str(path), None
        raise
    except BaseException:  # told to stop in the middle
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
