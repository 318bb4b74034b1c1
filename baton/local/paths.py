"""Where a local Baton keeps its files, after the XDG base directory rules."""

import os
from dataclasses import dataclass
from pathlib import Path

from baton.local.problem import Problem


def _base(variable: str, default: str) -> Path:
    given = os.environ.get(variable, "")
    return Path(given) if os.path.isabs(given) else Path.home() / default


def cache_dir() -> Path:
    """What can be made again, such as the assembled demo model."""
    return _base("XDG_CACHE_HOME", ".cache") / "baton"


@dataclass(frozen=True, slots=True)
class RunDir:
    """The directory of one running Baton."""

    path: Path

    @classmethod
    def of_port(cls, port: int) -> "RunDir":
        """Where a Baton of that port is, unless it was told another place."""
        return cls(_base("XDG_STATE_HOME", ".local/state") / "baton" / str(port))

    def make(self) -> None:
        """Makes the directories; a Baton's sockets and logs are its user's alone.

        Raises Problem where that is not possible.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.logs.mkdir(exist_ok=True)
            self.marks.mkdir(exist_ok=True)
        except OSError as error:
            raise Problem(
                f"cannot keep logs and state in {self.path}: {error.strerror}. "
                "Name another directory with --run-dir"
            ) from error

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def marks(self) -> Path:
        """Files by which processes say how far they are."""
        return self.path / "marks"

    @property
    def lock(self) -> Path:
        """Locked while a supervisor lives."""
        return self.path / "lock"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def replicas(self) -> Path:
        """How many workers a planner wants."""
        return self.path / "replicas.json"

    @property
    def supervisor_log(self) -> Path:
        """Output of a supervisor in the background."""
        return self.logs / "up.log"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def ready_file(self, name: str) -> Path:
        return self.marks / f"{name}.ready"

    def progress_file(self, name: str) -> Path:
        return self.marks / f"{name}.progress"
