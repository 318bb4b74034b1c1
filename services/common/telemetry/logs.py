"""How processes log: lines of JSON for programs, or lines for people on a terminal.

A record tells the process, and the trace and span that the code which wrote it belongs to.
"""

import logging
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, TextIO

from pythonjsonlogger.json import JsonFormatter

from services.common.settings import ServiceSettings
from services.common.telemetry import context

_SHOWN_DIGITS = 8
"""Of a trace's id, to people."""
_QUIET_S = 60.0
_THROTTLED = "opentelemetry"


def configure(
    settings: ServiceSettings, kind: str, name: str, stream: TextIO | None = None
) -> logging.Handler:
    """Sends all records to `stream` (standard error), and what nobody caught too."""
    out = stream or sys.stderr
    human = settings.log_format == "human" or (settings.log_format == "auto" and out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(HumanFormatter(name) if human else JsonLines(kind, name))
    handler.addFilter(Throttle())
    root = logging.getLogger()
    for other in root.handlers[:]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(settings.log_level)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    return handler


def span_ids() -> tuple[str, str]:
    """The ids of the current trace and span in hexadecimal digits; empty where there is none."""
    span = context.current()
    known = span.get_span_context() if span is not None else None
    if known is None or not known.is_valid:
        return "", ""
    return f"{known.trace_id:032x}", f"{known.span_id:016x}"


class JsonLines(JsonFormatter):
    """A line of JSON for each record."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__("%(message)s", rename_fields={"exc_info": "exception"})
        self._process = {"process_kind": kind, "process_name": name}

    def add_fields(
        self,
        log_data: dict[str, Any],
        record: logging.LogRecord,
        message_dict: dict[str, Any],
    ) -> None:
        """Fills `log_data`, in the order in which people look for things."""
        log_data |= {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._process,
        }
        trace_id, span_id = span_ids()
        if trace_id:
            log_data |= {"trace_id": trace_id, "span_id": span_id}
        super().add_fields(log_data, record, message_dict)


class HumanFormatter(logging.Formatter):
    """A line for people."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03d %(levelname)s {name.replace('%', '%%')} %(name)s"
            "%(trace)s: %(message)s",
            datefmt="%H:%M:%S",
        )

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The record's line, without its exception."""
        trace_id, _ = span_ids()
        record.trace = f" [{trace_id[:_SHOWN_DIGITS]}]" if trace_id else ""
        return super().formatMessage(record)


class Throttle(logging.Filter):
    """Lets what the tracing libraries say through once in a while only: a collector that is away
    is no news each second."""

    def __init__(self, quiet_s: float = _QUIET_S) -> None:
        super().__init__()
        self._quiet_s = quiet_s
        self._last: dict[str, float] = {}
        """When each logger was heard, of the few that there are."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        if not record.name.startswith(_THROTTLED):
            return True
        now = time.monotonic()
        if now - self._last.get(record.name, -self._quiet_s) < self._quiet_s:
            return False
        self._last[record.name] = now
        return True


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    logging.getLogger("uncaught").critical(
        "%s: %s", kind.__name__, error, exc_info=(kind, error, traceback)
    )


def _log_uncaught_in_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_value is not None:
        _log_uncaught(told.exc_type, told.exc_value, told.exc_traceback)
