"""Plain load balancers, to compare with: each request goes to a worker at once and waits there.

They see exactly how many requests each worker has. Nothing is refused or put in order, and
caches are met by chance.
"""

import random
from collections.abc import Callable, Sequence

from baton.policy.fleet import Role, Task
from bench.sim.fleet import Fleet
from bench.sim.life import Life
from bench.sim.worker import SimWorker

Pick = Callable[[Sequence[SimWorker]], SimWorker]


def round_robin(_seed: int) -> Pick:
    """Each worker in its turn."""
    turn: dict[Role, int] = {}

    def pick(workers: Sequence[SimWorker]) -> SimWorker:
        role = workers[0].role
        turn[role] = turn.get(role, -1) + 1
        return workers[turn[role] % len(workers)]

    return pick


def random_of_two(seed: int) -> Pick:
    """The one with fewer requests of two different ones that are drawn."""
    draw = random.Random(seed)

    def pick(workers: Sequence[SimWorker]) -> SimWorker:
        return min(draw.sample(workers, k=min(2, len(workers))), key=lambda one: one.expected)

    return pick


def least_outstanding(seed: int) -> Pick:
    """The one with the fewest requests, the first by chance among equals."""
    draw = random.Random(seed)

    def pick(workers: Sequence[SimWorker]) -> SimWorker:
        fewest = min(one.expected for one in workers)
        return draw.choice([one for one in workers if one.expected == fewest])

    return pick


BALANCERS: dict[str, Callable[[int], Pick]] = {
    "round-robin": round_robin,
    "least-outstanding": least_outstanding,
    "random-of-two": random_of_two,
}


class Balancer:
    """Dispatches by one of those rules, for prompts and for what goes on alike."""

    def __init__(self, fleet: Fleet, rule: str) -> None:
        self._fleet = fleet
        self._pick = BALANCERS[rule](fleet.config.seed)
        self._decode = fleet.of(Role.DECODE)
        self._prompts = fleet.of(Role.PREFILL) or self._decode
        self._task = Task.PREFILL if fleet.config.prefill else Task.WHOLE

    def arrive(self, life: Life) -> None:
        life.task = self._task
        worker = self._pick(self._prompts)
        worker.coming += 1
        self._fleet.send(life, worker, self._task)

    def go_on(self, life: Life) -> None:
        worker = self._pick(self._decode)
        worker.coming += 1
        self._fleet.hand_over(life, worker)

    def admitted(self, worker: SimWorker, life: Life) -> None:
        pass

    def changed(self, worker: SimWorker) -> None:
        pass

    def finished(self, life: Life) -> None:
        pass
