"""Starts processes, notices that one died, and stops them: one of them, or all in order.

Knows nothing of models or gRPC: only of commands, ready files and signals.
"""

import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.local.child import (
    Child,
    Launch,
    ProcessSpec,
    describe_exit,
    launch_afresh,
    log_tail,
)
from baton.local.problem import Problem
from baton.local.state import Kind, ProcessState

STOP_ORDER: tuple[tuple[Kind, ...], ...] = (
    (Kind.PLANNER,),
    (Kind.GATEWAY,),
    (Kind.ROUTER,),
    (Kind.PREFILL, Kind.DECODE),
    (Kind.TRANSFER,),
    (Kind.VALKEY,),
)
"""Whoever needs another, or would start one again, ends before it."""
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


@dataclass(frozen=True, slots=True)
class Retired:
    """A process that was retired, and has ended."""

    name: str
    code: int
    killed: bool
    """Whether it outstayed its grace."""


class Supervisor:
    """The processes of one Baton.

    Not thread-safe. To be used on a thread that lives as long as the processes should: on
    Linux they die with it.
    """

    def __init__(self, specs: Sequence[ProcessSpec], launch: Launch = launch_afresh) -> None:
        self.specs = {spec.name: spec for spec in specs}
        assert len(self.specs) == len(specs), "two processes of one name"
        self._launch = launch
        self._children: dict[str, Child] = {}
        self._retiring: dict[str, float] = {}
        """When the grace of each retired process that has not ended is over; infinite once that
        was so."""

    def start(self) -> None:
        """Starts all at the same time; each waits for those that it needs."""
        for name in self.specs:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Starts a process that does not run, also again."""
        child = self._children.get(name)
        assert child is None or child.exit_code() is not None, f"{name} runs already"
        self._children[name] = Child(self.specs[name], self._launch)

    def add(self, spec: ProcessSpec) -> None:
        """Starts a further process. Raises OSError where that is not possible."""
        assert spec.name not in self.specs, f"there is a {spec.name} already"
        self._children[spec.name] = Child(spec, self._launch)
        self.specs[spec.name] = spec

    def retire(self, name: str) -> None:
        """Begins to end a process whose end is then no failure: SIGTERM, and after its grace, in
        `reap`, SIGKILL."""
        child = self._children[name]
        self._retiring[name] = time.monotonic() + child.spec.grace
        child.signal(signal.SIGTERM)

    def reap(self) -> list[Retired]:
        """Retired processes that have ended since; nothing of them is left here. Does not wait."""
        ended: list[Retired] = []
        for name, deadline in list(self._retiring.items()):
            child = self._children[name]
            code = child.exit_code()
            if code is not None:
                ended.append(Retired(name, code, killed=math.isinf(deadline)))
                del self._retiring[name], self._children[name], self.specs[name]
            elif time.monotonic() > deadline:
                child.signal(signal.SIGKILL)
                self._retiring[name] = math.inf
        return ended

    def check(self) -> None:
        """Raises ChildDied when a started process has ended that was not retired."""
        for name, child in self._children.items():
            code = child.exit_code()
            if code is not None and name not in self._retiring:
                raise ChildDied(name, code, log_tail(child.spec.log))

    def ready(self) -> bool:
        """Whether all are, or were, ready."""
        return all(child.ready() for child in self._children.values())

    def is_ready(self, name: str) -> bool:
        """Whether a process is, or was, ready."""
        return self._children[name].ready()

    def running(self, kind: Kind) -> list[str]:
        """Processes of a kind that were started and not retired, the newest last."""
        return [name for name in self._of_kind(kind) if name not in self._retiring]

    def retiring(self, kind: Kind) -> list[str]:
        """Retired processes of a kind that have not ended."""
        return [name for name in self._of_kind(kind) if name in self._retiring]

    def _of_kind(self, kind: Kind) -> list[str]:
        return [name for name, child in self._children.items() if child.spec.kind is kind]

    def states(self) -> tuple[ProcessState, ...]:
        return tuple(
            child.state(stopping=name in self._retiring) for name, child in self._children.items()
        )

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
