"""Services as processes that need not import what another one has imported already.

A test run starts hundreds of services, and each would spend seconds of CPU on imports alone. Here
each kind of service has a fork server, that has imported what this kind imports and nothing else;
processes are forked from it. They are started by `launch` in place of `baton.local.child`'s own.
`BATON_TESTS_FORK=0` starts everything afresh; so do tests of `baton up`.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from baton.local.child import Process, ProcessSpec, launch_afresh
from tests.support import fork_server

_PREFIX = (sys.executable, "-P", "-m")
_START_S = 60.0
_STDERR = 2
_lock = threading.Lock()
_servers: dict[str, "_Server"] = {}


def launch(spec: ProcessSpec, log: IO[bytes]) -> Process:
    """Starts a service by a fork, and anything else as ever."""
    if not _can_fork(spec.command):
        return launch_afresh(spec, log)
    return start(spec.command, log.fileno(), spec.death_signal)


def prepare(commands: Iterable[Sequence[str]]) -> None:
    """Lets fork servers begin with their imports, all at the same time."""
    for command in filter(_can_fork, commands):
        _server(command[3])


def start(
    command: Sequence[str], log: int = _STDERR, death_signal: int = signal.SIGKILL
) -> "Forked | subprocess.Popen[bytes]":
    """A process of `python -P -m MODULE ARGUMENT...`, which writes to the log."""
    if not _can_fork(command):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return _server(command[3]).fork(command[4:], log, death_signal)


def serve(
    module: str, ready: Path, flags: Sequence[str]
) -> "tuple[Forked | subprocess.Popen[bytes], str]":
    """A service that serves already, and the address that it wrote into its ready file."""
    ready.unlink(missing_ok=True)
    process = start([*_PREFIX, module, "--ready-file", str(ready), *flags])
    deadline = time.monotonic() + _START_S / 2
    while not ready.exists():
        assert process.poll() is None, f"{module} ended at its start"
        assert time.monotonic() < deadline, f"{module} does not start"
        time.sleep(0.02)
    return process, ready.read_text()


def _server(module: str) -> "_Server":
    with _lock:
        if module not in _servers:
            _servers[module] = _Server(module)
            atexit.register(_servers[module].close)
        return _servers[module]


def _can_fork(command: Sequence[str]) -> bool:
    wanted = sys.platform == "linux" and os.environ.get("BATON_TESTS_FORK") != "0"
    return wanted and tuple(command[:3]) == _PREFIX


class Forked:
    """A process that a fork server is the parent of; used as `subprocess.Popen` is."""

    def __init__(self, pid: int, exit_pipe: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._exit_pipe = exit_pipe
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        """The exit code; negative: minus the signal that ended it; None while it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises TimeoutExpired where it does not end in time."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing happens when it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        with self._reading:
            if self.returncode is None and select.select([self._exit_pipe], [], [], timeout)[0]:
                told = os.read(self._exit_pipe, fork_server.EXIT_CODE.size)
                # Its server died, and it with it, where nothing is told.
                self.returncode = fork_server.EXIT_CODE.unpack(told)[0] if told else -signal.SIGKILL
                os.close(self._exit_pipe)
            return self.returncode


class _Server:
    """The fork server of one module. Lives as long as this process."""

    def __init__(self, module: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", fork_server.__file__, str(theirs.fileno()), module],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # its threads start on import
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control.settimeout(_START_S)
        self._ready = False
        self._asking = threading.Lock()

    def fork(self, arguments: Sequence[str], log: int, death_signal: int) -> Forked:
        order = {
            "arguments": list(arguments),
            "environment": dict(os.environ),
            "directory": str(Path.cwd()),
            "death_signal": int(death_signal),
        }
        exit_pipe, theirs = os.pipe()
        try:
            with self._asking:
                if not self._ready:
                    self._ready = self._control.recv(16) == b"ready"
                    assert self._ready, f"no fork server: {self._process.args}"
                socket.send_fds(self._control, [json.dumps(order).encode()], [log, theirs])
                return Forked(int(self._control.recv(16)), exit_pipe)
        finally:
            os.close(theirs)

    def close(self) -> None:
        """Ends it, and what was forked from it."""
        self._control.close()
        self._process.wait(_START_S)
