"""Who is told what happens on a simulated worker."""

from typing import TYPE_CHECKING, Protocol

from bench.sim.life import Life

if TYPE_CHECKING:
    from bench.sim.worker import SimWorker


class Hooks(Protocol):
    """Told what happens on a worker, at the end of the step in which it does."""

    def admitted(self, worker: "SimWorker", life: Life) -> None:
        """It has room for a request now."""

    def prompt_done(self, worker: "SimWorker", life: Life) -> None:
        """A prompt to be handed over is computed; it has left."""

    def finished(self, worker: "SimWorker", life: Life) -> None:
        """The last token is there; it has left."""

    def preempted(self, worker: "SimWorker", life: Life) -> None:
        """It was handed back with its KV."""

    def changed(self, worker: "SimWorker") -> None:
        """There is more room, or less, or few prompts are left."""
