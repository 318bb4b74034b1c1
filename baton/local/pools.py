"""Keeps as many prefill and decode workers running as the replicas file asks for.

Looks when it is told to; never waits. Knows no planner: whoever writes the file is one.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from baton.local.child import ProcessSpec, describe_exit
from baton.local.model import Say
from baton.local.plan import Plan
from baton.local.problem import Problem
from baton.local.replicas import Replicas, Wanted
from baton.local.state import Kind
from baton.local.supervisor import Retired
from baton.policy.fleet import Role


class Workforce(Protocol):
    """Who starts and stops processes: a Supervisor."""

    def add(self, spec: ProcessSpec) -> None:
        """Starts a further process. Raises OSError where that is not possible."""

    def retire(self, name: str) -> None:
        """Begins to end a process whose end is then no failure."""

    def reap(self) -> list[Retired]:
        """Retired processes that have ended since; their names are free again."""

    def running(self, kind: Kind) -> list[str]:
        """Processes of a kind that were started and not retired."""

    def retiring(self, kind: Kind) -> list[str]:
        """Retired processes of a kind that have not ended."""

    def is_ready(self, name: str) -> bool:
        """Whether a process is, or was, ready."""


class Pools:
    """Follows the file; belongs to the supervisor's thread."""

    def __init__(
        self,
        path: Path,
        plan: Plan,
        workforce: Workforce,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._plan = plan
        self._workforce = workforce
        self._say = say
        self._clock = clock
        self._starting: dict[str, float] = {}
        """When each worker was started that was not ready since."""
        self._complaint = ""

    def reconcile(self) -> None:
        """Starts and stops what the file wants otherwise than it is, and tells of it. With a file
        that cannot be followed all stays as it is."""
        self._tell_news()
        try:
            replicas = Replicas.read(self._path)
            self._check(replicas)
            for role in Role:
                self._follow(Kind(role.value), replicas.of(role))
        except Problem as problem:
            if str(problem) != self._complaint:
                self._say(f"workers stay as they are: {problem}")
            self._complaint = str(problem)
        else:
            self._complaint = ""

    def _check(self, replicas: Replicas) -> None:
        for role in Role:
            most = len(self._plan.names(Kind(role.value)))
            wanted = replicas.of(role).workers
            if wanted > most:
                raise Problem(
                    f"{self._path} asks for {wanted} {role.value} workers, and --max-{role.value} "
                    f"is {most}"
                )

    def _follow(self, kind: Kind, wanted: Wanted) -> None:
        running = self._workforce.running(kind)
        because = f": {wanted.why}" if wanted.why else ""
        for name in surplus(running, wanted, self._workforce.is_ready):
            self._say(f"stopping {name}{because}")
            self._starting.pop(name, None)
            self._workforce.retire(name)
        # Who is about to end still has its memory, and its name.
        taken = {*running, *self._workforce.retiring(kind)}
        free = [name for name in self._plan.names(kind) if name not in taken]
        for name in free[: max(0, wanted.workers - len(running))]:
            try:
                self._workforce.add(self._plan.worker(name))
            except OSError as error:
                raise Problem(f"cannot start {name}: {error.strerror}") from error
            self._say(f"starting {name}{because}")
            self._starting[name] = self._clock()

    def _tell_news(self) -> None:
        for one in self._workforce.reap():
            how = "had to be killed" if one.killed else describe_exit(one.code)
            self._say(f"{one.name} stopped" + (f" ({how})" if one.code else ""))
        for name in [one for one in self._starting if self._workforce.is_ready(one)]:
            taken = self._clock() - self._starting.pop(name)
            self._say(f"{name} ready after {taken:.1f} s")


def surplus(running: Sequence[str], wanted: Wanted, is_ready: Callable[[str], bool]) -> list[str]:
    """Which of the running workers are to stop: those that do not serve yet, the newest first,
    then victims in their order, then the newest."""
    newest = list(reversed(running))
    starting = [name for name in newest if not is_ready(name)]
    victims = [name for name in wanted.victims if name in running]
    first = dict.fromkeys([*starting, *victims, *newest])
    return list(first)[: max(0, len(running) - wanted.workers)]
