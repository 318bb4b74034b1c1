"""One process that a supervisor started: its log, whether it is ready, its end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from baton.local import launch
from baton.local.identity import ProcessIdentity
from baton.local.state import Kind, ProcessState

TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to start."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    address: str
    """Where it will serve: host:port; of a Redis its URL, unix:///path or redis://host:port."""
    grace: float
    """Seconds that it may take to end after SIGTERM."""
    log: Path
    ready_file: Path | None
    """File that it writes once it is ready; None: it is a Redis, and is asked."""
    progress_file: Path | None = None
    death_signal: int = signal.SIGKILL
    """What it gets, on Linux, when its supervisor dies."""


class Process(Protocol):
    """What is needed of a started process: a part of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


Launch = Callable[[ProcessSpec, IO[bytes]], Process]
"""Starts a process in a session of its own, which writes to the log and gets its death signal."""


def launch_afresh(spec: ProcessSpec, log: IO[bytes]) -> Process:
    """Starts a new interpreter or program."""
    tie = (str(os.getpid()), str(int(spec.death_signal)))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", launch.__file__, *tie, *spec.command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # a terminal's Ctrl-C reaches the supervisor alone
    )


class Child:
    """A started process. To be made on the thread that lives as long as it should live."""

    def __init__(self, spec: ProcessSpec, start: Launch = launch_afresh) -> None:
        self.spec = spec
        for mark in (spec.ready_file, spec.progress_file):
            if mark is not None:
                mark.unlink(missing_ok=True)
        with spec.log.open("ab") as log:
            self._process = start(spec, log)
        self._ready = False
        self._identity = ProcessIdentity.of(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative: minus the signal that ended it."""
        return self._process.poll()

    def ready(self) -> bool:
        """Whether it was ever ready."""
        if not self._ready:
            file = self.spec.ready_file
            self._ready = _redis_answers(self.spec.address) if file is None else file.exists()
        return self._ready

    def signal(self, number: int) -> None:
        """Sends a signal; nothing happens when it has ended."""
        self._process.send_signal(number)

    def wait(self, timeout: float) -> bool:
        """Waits for its end; False when it still runs after `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def state(self, *, stopping: bool) -> ProcessState:
        spec = self.spec
        return ProcessState(
            name=spec.name,
            kind=spec.kind,
            pid=self.pid,
            started=self._identity.started if self._identity else "",
            address=spec.address,
            log=str(spec.log),
            progress_file=str(spec.progress_file or ""),
            ready=self.ready(),
            stopping=stopping,
        )


def log_tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 16 * 1024))
        text = file.read().decode(errors="replace")
    return "\n".join(text.strip().splitlines()[-lines:])


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _redis_answers(address: str) -> bool:
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    family = socket.AF_UNIX if scheme == "unix" else socket.AF_INET
    with socket.socket(family) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(place if scheme == "unix" else (host, int(port)))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
