"""What a supervisor tells others about itself: the state file, and the lock beside it.

The lock says whether a supervisor lives, whatever the file says.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from baton.local.identity import ProcessIdentity
from baton.local.paths import RunDir


class Kind(StrEnum):
    """What a process is."""

    VALKEY = "valkey"
    TRANSFER = "transfer"
    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"
    GATEWAY = "gateway"
    PLANNER = "planner"


class Phase(StrEnum):
    """How far a Baton is."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of a Baton."""

    name: str
    kind: Kind
    pid: int
    started: str
    address: str
    log: str
    progress_file: str
    """File with bytes done and total while a model loads; empty: it loads none."""
    ready: bool
    """Whether it is, or was, ready."""
    stopping: bool = False
    """Whether it was told to end while the others go on."""

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.started)

    def progress(self) -> tuple[int, int] | None:
        """Bytes of the model that are loaded, and all; None where that is not known."""
        if not self.progress_file:
            return None
        try:
            done, total = map(int, Path(self.progress_file).read_text().split())
        except (OSError, ValueError):
            return None
        return done, total


@dataclass(frozen=True, slots=True)
class State:
    """A Baton on this machine."""

    supervisor: ProcessIdentity
    phase: Phase
    address: str
    model: str
    since: float
    """When it was started, in seconds since 1970."""
    processes: tuple[ProcessState, ...]

    def write(self, run_dir: RunDir) -> None:
        """Puts it into the state file, at once and whole."""
        partial = run_dir.state.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(self), indent=2))
        partial.replace(run_dir.state)

    @classmethod
    def read(cls, run_dir: RunDir) -> "State | None":
        """What the state file says; None where there is none that can be understood."""
        return cls.read_file(run_dir.state)

    @classmethod
    def read_file(cls, path: Path) -> "State | None":
        """The same, of a file that may be anywhere."""
        try:
            return cls._from_json(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @classmethod
    def _from_json(cls, found: dict[str, Any]) -> "State":
        return cls(
            supervisor=ProcessIdentity(**found["supervisor"]),
            phase=Phase(found["phase"]),
            address=found["address"],
            model=found["model"],
            since=found["since"],
            processes=tuple(
                ProcessState(**{**process, "kind": Kind(process["kind"])})
                for process in found["processes"]
            ),
        )


class AlreadyLocked(Exception):
    """Another supervisor lives in the same directory."""


@contextlib.contextmanager
def locked(run_dir: RunDir) -> Iterator[None]:
    """Holds the directory's lock, which ends with this process in any case."""
    run_dir.make()
    with run_dir.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyLocked from None
        yield
