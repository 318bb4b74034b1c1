"""Which process a pid stands for: pids are used again, so a start time goes with each.

Reads /proc on Linux and asks `ps` elsewhere.
"""

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, and no later one of the same pid."""

    pid: int
    started: str
    """When it started, as the system tells it; only compared."""

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The process that has `pid` now; None where there is none."""
        started = _start_time(pid)
        return None if started is None else cls(pid, started)

    def alive(self) -> bool:
        """Whether it still runs; a process that only waits to be reaped does not."""
        return _start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Sends a signal; nothing happens when it is gone."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_gone(self, timeout: float) -> bool:
        """Waits until it is gone; False when it is not after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def _start_time(pid: int) -> str | None:
    if not Path("/proc/self/stat").exists():
        return _start_time_by_ps(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold spaces
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def _start_time_by_ps(pid: int) -> str | None:
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()
