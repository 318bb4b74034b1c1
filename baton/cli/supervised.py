"""What the supervisor of a Baton on this machine tells about it, beside what its routers say."""

from dataclasses import dataclass
from pathlib import Path

from baton.local.paths import RunDir
from baton.local.problem import Problem
from baton.local.replicas import Replicas
from baton.local.state import Kind, ProcessState, State
from baton.policy.fleet import Role
from baton.tls import is_loopback


@dataclass(frozen=True, slots=True)
class Supervised:
    """A Baton with a supervisor that lives."""

    run_dir: RunDir
    state: State

    @classmethod
    def at(cls, address: str, run_dir: Path | None) -> "Supervised | None":
        """The one in a directory, or else the one whose router serves at `address`; None where
        there is none on this machine."""
        port = address.rpartition(":")[2]
        if run_dir is not None:
            place = RunDir(run_dir.absolute())
        elif port.isdecimal() and is_loopback(address):
            place = RunDir.of_port(int(port))
        else:
            return None
        state = State.read(place)
        return cls(place, state) if state is not None and state.supervisor.alive() else None

    @property
    def planner(self) -> ProcessState | None:
        return next((one for one in self.state.processes if one.kind is Kind.PLANNER), None)

    def wanted(self) -> str:
        """What the planner wants, in a line."""
        try:
            replicas = Replicas.read(self.run_dir.replicas)
        except Problem as problem:
            return f"wanted: {problem}"
        parts = []
        for role in Role:
            wanted = replicas.of(role)
            there = self._serving(Kind(role.value))
            why = f" ({wanted.why})" if wanted.why else ""
            parts.append(f"{wanted.workers} {role.value}, {there} ready{why}")
        return f"wanted: {'; '.join(parts)}"

    def _serving(self, kind: Kind) -> int:
        return sum(
            one.kind is kind and one.ready and not one.stopping for one in self.state.processes
        )
