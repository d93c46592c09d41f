"""The log: one record is one line, whatever a client put into it."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from calserve.observe.logs import setup_logs

HOSTILE = 'a\r\nfake line\x1b[31m "q" = \u2028 \u202e'


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _logged(is_json: bool, message: str, **fields: object) -> str:
    out = io.StringIO()
    setup_logs(is_json, out=out)
    structlog.get_logger("x").info(message, **fields)
    return out.getvalue()


@pytest.mark.parametrize("is_json", [True, False])
def test_hostile_values_stay_on_one_line_escaped(is_json: bool) -> None:
    line = _logged(is_json, HOSTILE, user=HOSTILE, model=HOSTILE)
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert "\x1b" not in line
    assert "\r" not in line
    assert "\u2028" not in line
    assert "fake line" in line


@pytest.mark.parametrize("is_json", [True, False])
def test_long_values_are_cut(is_json: bool) -> None:
    assert len(_logged(is_json, "m", user="u" * 65536, other=["v" * 65536])) < 3000


@pytest.mark.parametrize("is_json", [True, False])
@pytest.mark.parametrize("field", ["prompt", "messages", "text", "authorization"])
def test_prompts_and_secrets_are_never_logged(is_json: bool, field: str) -> None:
    assert "hunter2" not in _logged(is_json, "m", **{field: "hunter2"})


def test_json_lines_carry_level_time_and_fields() -> None:
    record = json.loads(_logged(True, "started", port=8000))
    assert (record["event"], record["level"], record["port"]) == ("started", "info", 8000)
    assert record["timestamp"].endswith("Z")


def test_standard_library_records_and_tracebacks_go_the_same_way() -> None:
    out = io.StringIO()
    setup_logs(False, out=out)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("calserve.api").exception("a route failed: %r", "p\nq")
    lines = out.getvalue().splitlines()
    assert "error a route failed" in lines[0]
    assert all(line.startswith("    ") for line in lines[1:])
    assert "\x1b" not in out.getvalue()


def test_levels_below_the_least_are_left_out() -> None:
    out = io.StringIO()
    setup_logs(True, "warning", out)
    logging.getLogger("uvicorn.error").info("not shown")
    assert out.getvalue() == ""
