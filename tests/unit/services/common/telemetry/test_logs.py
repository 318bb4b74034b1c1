"""Log records as lines, for programs and for people."""

import io
import json
import logging
import subprocess
import sys
import threading
from datetime import datetime

import pytest

from services.common.telemetry import context, logs, tracing
from tests.support.tracing import settings, traced


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _restored():
    """Logging as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, sys.excepthook, threading.excepthook
    yield
    root.handlers[:], level, sys.excepthook, threading.excepthook = before
    root.setLevel(level)


def lines_of(out):
    return out.getvalue().splitlines()


async def test_json_has_what_programs_look_for():
    out = io.StringIO()
    logs.configure(settings(), "decode", "decode-0", out)
    logging.getLogger("a.b").info("took %d ms", 5)
    async with traced():
        with tracing.span("x") as span:
            logging.getLogger("a.b").warning("slow", extra={"tokens": 3})
    # Exporters of other tests may still say something, on threads of their own.
    records = map(json.loads, lines_of(out))
    first, second = (one for one in records if one["logger"] == "a.b")
    assert {key: first[key] for key in ("level", "logger", "message")} == {
        "level": "INFO",
        "logger": "a.b",
        "message": "took 5 ms",
    }
    assert (first["process_kind"], first["process_name"]) == ("decode", "decode-0")
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert "trace_id" not in first
    assert second["trace_id"] == context.trace_id_of(span).hex()
    assert second["span_id"] == f"{span.get_span_context().span_id:016x}"
    assert second["tokens"] == 3


def test_json_has_an_exception_in_one_line():
    out = io.StringIO()
    logs.configure(settings(log_format="json"), "decode", "decode-0", out)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (line,) = map(json.loads, lines_of(out))
    assert "ValueError: two\nlines" in line["exception"]
    assert "Traceback" in line["exception"]


async def test_people_see_the_trace_where_there_is_one():
    out = Terminal()
    logs.configure(settings(), "router", "router-1", out)
    logging.getLogger("x").info("hello")
    async with traced():
        with tracing.span("x") as span:
            logging.getLogger("x").info("there")
    first, second = lines_of(out)
    assert first.endswith("INFO router-1 x: hello")
    assert second.endswith(f"x [{context.trace_id_of(span).hex()[:8]}]: there")


def test_the_level_holds_and_a_second_setting_replaces_the_first():
    first, second = io.StringIO(), io.StringIO()
    logs.configure(settings(), "a", "a", first)
    logs.configure(settings(log_level="ERROR", log_format="human"), "b", "b", second)
    logging.getLogger("x").warning("no")
    logging.getLogger("x").error("yes")
    assert lines_of(first) == []
    assert len(lines_of(second)) == 1


def test_the_exporters_complaints_do_not_flood():
    out = io.StringIO()
    logs.configure(settings(log_format="human"), "a", "a", out)
    for _ in range(100):
        logging.getLogger("opentelemetry.exporter").warning("away")
        logging.getLogger("x").warning("mine")
    assert sum("away" in line for line in lines_of(out)) == 1
    assert sum("mine" in line for line in lines_of(out)) == 100


_FAILING = """
import sys
from services.common.process import run
from services.common.settings import ServiceSettings

async def main(stop):
    raise RuntimeError("a bug")

sys.argv = ["service"]
run("service", ServiceSettings(), main)
"""


def test_what_nobody_caught_is_a_line_of_json_too():
    ended = subprocess.run(
        [sys.executable, "-c", _FAILING], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    *_, line = map(json.loads, ended.stderr.splitlines())
    assert (line["level"], line["message"]) == ("CRITICAL", "RuntimeError: a bug")
    assert "Traceback" in line["exception"]
