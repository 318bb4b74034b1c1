"""Starts processes, notices that one died, and stops them in order.

Knows nothing of models or gRPC: only of commands, ready files and signals.
"""

import signal
import time
from collections.abc import Callable, Sequence

from baton.local.child import Child, ProcessSpec, describe_exit, log_tail
from baton.local.problem import Problem
from baton.local.state import Kind, ProcessState

STOP_ORDER: tuple[tuple[Kind, ...], ...] = (
    (Kind.GATEWAY,),
    (Kind.ROUTER,),
    (Kind.PREFILL, Kind.DECODE),
    (Kind.TRANSFER,),
    (Kind.VALKEY,),
)
"""Whoever needs another ends before it."""
_KILL_SECONDS = 10.0
_HURRIED_GRACE = 0.5

Hurry = Callable[[], bool]
"""Whether someone lost patience."""


def _patient() -> bool:
    return False


class ChildDied(Problem):
    """A process ended that should run."""

    def __init__(self, name: str, code: int, tail: str) -> None:
        report = f"{name} died ({describe_exit(code)})"
        if tail:
            report += ". The last lines of its log:\n" + _indented(tail)
        super().__init__(report)
        self.name = name
        self.code = code


class Supervisor:
    """The processes of one Baton.

    Not thread-safe. To be used on a thread that lives as long as the processes should: on
    Linux they die with it.
    """

    def __init__(self, specs: Sequence[ProcessSpec]) -> None:
        self.specs = {spec.name: spec for spec in specs}
        assert len(self.specs) == len(specs), "two processes of one name"
        self._children: dict[str, Child] = {}

    def start(self) -> None:
        """Starts all at the same time; each waits for those that it needs."""
        for name in self.specs:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Starts a process that does not run, also again."""
        child = self._children.get(name)
        assert child is None or child.exit_code() is not None, f"{name} runs already"
        self._children[name] = Child(self.specs[name])

    def check(self) -> None:
        """Raises ChildDied when a started process has ended."""
        for name, child in self._children.items():
            code = child.exit_code()
            if code is not None:
                raise ChildDied(name, code, log_tail(child.spec.log))

    def ready(self) -> bool:
        """Whether all are, or were, ready."""
        return all(child.ready() for child in self._children.values())

    def states(self) -> tuple[ProcessState, ...]:
        return tuple(child.state() for child in self._children.values())

    def started(self) -> list[str]:
        """Names of the processes that were started, whether they still run or not."""
        return list(self._children)

    def child(self, name: str) -> Child:
        """A started process."""
        return self._children[name]

    def stop(self, *, hurry: Hurry = _patient) -> list[str]:
        """Ends all, those first that need others; returns the names of those it had to kill.

        Each has its grace after SIGTERM, hardly any when `hurry` says so; then comes SIGKILL.
        Idempotent.
        """
        killed: list[str] = []
        for kinds in STOP_ORDER:
            children = [
                child
                for child in self._children.values()
                if child.spec.kind in kinds and child.exit_code() is None
            ]
            for child in children:
                child.signal(signal.SIGTERM)
            started = time.monotonic()
            for child in children:
                if not _wait(child, started, hurry):
                    child.signal(signal.SIGKILL)
                    child.wait(_KILL_SECONDS)
                    killed.append(child.spec.name)
        return killed


def _wait(child: Child, started: float, hurry: Hurry) -> bool:
    grace = child.spec.grace
    while not child.wait(0.05):
        if time.monotonic() - started > (min(grace, _HURRIED_GRACE) if hurry() else grace):
            return False
    return True


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
