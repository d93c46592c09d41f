"""The process's log: one line per record, as JSON or as plain text.

Owns the format and what may stand in it. Values are escaped, so that a line break or a terminal escape in a client's
string cannot forge a line; long values are cut; prompts and generated text are never logged, and a field by such a
name is replaced. Must not know who logs what.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MAX_VALUE_CHARACTERS = 500
# Tracebacks are ours, not a client's, and useless when cut short.
_UNCUT = frozenset({"exception"})
SECRET_FIELDS = frozenset(
    {"prompt", "messages", "content", "text", "completion", "body", "authorization", "api_key", "token", "tokens"}
)


def setup_logs(is_json: bool, level: str = "info", out: TextIO | None = None) -> None:
    """Route every logger of the process through one formatter.

    Args:
        is_json: one JSON object per line; otherwise `time level event key=value`.
        level: the least severe level that is shown.
        out: where lines go; standard error by default.
    """
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        bound_values,
    ]
    render: Processor = render_json if is_json else render_plain
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
    )
    handler = logging.StreamHandler(out or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def bound_values(logger: WrappedLogger, name: str, fields: EventDict) -> EventDict:
    """Replace what must not be logged, and cut what is long."""
    for key, value in fields.items():
        if key.startswith("_"):
            continue
        if key in SECRET_FIELDS:
            fields[key] = "[not logged]"
        elif key not in _UNCUT and not isinstance(value, int | float | bool | None):
            text = value if isinstance(value, str) else repr(value)
            fields[key] = text if len(text) <= MAX_VALUE_CHARACTERS else text[:MAX_VALUE_CHARACTERS] + "..."
    return fields


def render_json(logger: WrappedLogger, name: str, fields: EventDict) -> str:
    return json.dumps(fields, default=repr)


def render_plain(logger: WrappedLogger, name: str, fields: EventDict) -> str:
    """`time level event key=value`; values that are not plain words stand as JSON strings."""
    rest = dict(fields)
    time, level, event = (str(rest.pop(key, "-")) for key in ("timestamp", "level", "event"))
    exception = str(rest.pop("exception", ""))
    words = [time, level, _escaped(event, spaces=True), *(f"{key}={_escaped(value)}" for key, value in rest.items())]
    # A traceback keeps its lines, indented, so that no line of it can be taken for a record.
    trace = "".join(f"\n    {_escaped(line, spaces=True)}" for line in exception.splitlines())
    return " ".join(words) + trace


def _escaped(value: object, spaces: bool = False) -> str:
    text = value if isinstance(value, str) else str(value)
    is_plain = text.isascii() and text.isprintable() and text and '"' not in text
    return text if is_plain and (spaces or (" " not in text and "=" not in text)) else json.dumps(text)
