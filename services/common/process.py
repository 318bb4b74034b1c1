"""What every `__main__` does around its service: settings, logging, signals, the ready file."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from services.common.settings import ServiceSettings
from services.common.telemetry import logs, tracing

Main = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Runs a service until the event is set, then drains it."""


S = TypeVar("S", bound=ServiceSettings)


def read_settings(kind: type[S]) -> S:
    """The settings in flags and environment. Exits 2 with a line for each one that is wrong."""
    try:
        return kind()
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            flag = "--" + "-".join(map(str, problem["loc"])).replace("_", "-")
            given = f" {problem['input']}" if isinstance(problem["input"], str) else ""
            where = f"{flag}{given}: " if problem["loc"] else ""  # none: it is about several
            sys.stderr.write(f"{where}{problem['msg']}\n")
        sys.exit(2)


def run(name: str, settings: ServiceSettings, main: Main) -> None:
    """Runs `main` until SIGTERM or SIGINT, then lets it drain. Exits 1 with one line on OSError."""
    own = process_name(name, settings)
    logs.configure(settings, name, own)
    try:
        asyncio.run(_until_signal(name, own, settings, main))
    except OSError as error:
        logging.getLogger(name).error("%s", error)
        sys.exit(1)


def leave() -> NoReturn:
    """Ends a process that has cleaned up, with success and at once: unloading its native
    libraries would take a second, and serve nobody."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def process_name(kind: str, settings: ServiceSettings) -> str:
    """What logs and traces call the process."""
    ids = (getattr(settings, id_, "") for id_ in ("process_name", "worker_id", "router_id"))
    return next(filter(None, ids), kind)


async def _until_signal(kind: str, name: str, settings: ServiceSettings, main: Main) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    # Not the loop's own handlers: those end with it, and a second signal would kill a process
    # that has drained and is about to exit 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    traces = tracing.start(settings, kind, name)
    try:
        await main(stop)
    finally:
        await traces.close()


def write_ready_file(settings: ServiceSettings, address: str) -> None:
    """Tells whoever started the process that it serves at `address`."""
    if settings.ready_file:
        path = Path(settings.ready_file)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(address)
        partial.replace(path)
