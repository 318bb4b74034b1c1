"""The simulated fleet: workers, their caches, handoffs between them, and who dispatches.

A dispatcher decides where a request goes (`arrive`), where it goes on (`go_on`), and is told
what workers tell. The same fleet runs under each of them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from baton.policy.admission import default_ttft_s
from baton.policy.fleet import Role, Task
from bench.sim.cache import Index, PrefixCache
from bench.sim.events import Events
from bench.sim.life import Life
from bench.sim.measure import Gaps
from bench.sim.worker import SimWorker, Spec
from bench.sim.workload import BLOCK_TOKENS, Arrival

CALL_S = 0.001
"""A message between processes."""


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """A fleet and what is asked of it."""

    prefill: int
    """Prefill workers. 0: decode workers compute all prompts."""
    decode: int
    spec: Spec
    workers_per_host: int = 1
    """Workers that find each other's prefixes."""
    cache_tokens: int = 1_000_000
    """For each worker of a host: prefixes kept."""
    kv_token_bytes: int = 131_072
    link_bytes_s: float = 25e9
    """Of a worker, for handoffs."""
    ttft_target_s: float = 2.0
    batch_ttft_target_s: float = 60.0
    itl_target_s: float = 0.2
    batch_itl_target_s: float = 2.0
    batch_share: float = 0.0
    """Share of the requests that are made batch requests, where the trace has no class."""
    max_tokens: int = 1024
    speed_spread: float = 0.03
    """Standard deviation of the workers' speeds, which their cost models don't know."""
    seed: int = 0


class Dispatcher(Protocol):
    """Who decides where requests go."""

    def arrive(self, life: Life) -> None:
        """A new request; it goes to a worker, waits, or is refused."""

    def go_on(self, life: Life) -> None:
        """It has its first token, or was handed back: it needs a decode worker."""

    def admitted(self, worker: SimWorker, life: Life) -> None:
        """A worker has room for a request now."""

    def changed(self, worker: SimWorker) -> None:
        """A worker has more room, or few prompts."""

    def finished(self, life: Life) -> None:
        """A request has ended."""


class Fleet:
    """Workers and what flows between them. `dispatcher` is set before it runs."""

    dispatcher: Dispatcher

    def __init__(self, config: FleetConfig, events: Events) -> None:
        self.config = config
        self.events = events
        self.gaps = Gaps()
        self.index = Index()
        self.lives: list[Life] = []
        draw = random.Random(config.seed)
        roles = [Role.PREFILL] * config.prefill + [Role.DECODE] * config.decode
        order = sorted(range(len(roles)), key=lambda number: number % max(1, config.decode))
        hosts = {number: rank // config.workers_per_host for rank, number in enumerate(order)}
        blocks = config.cache_tokens * config.workers_per_host // BLOCK_TOKENS
        self._caches = {
            host: PrefixCache(host, blocks, self.index) for host in sorted(set(hosts.values()))
        }
        self.host_of = hosts
        self.on_host: dict[int, list[int]] = {}
        for number, host in hosts.items():
            self.on_host.setdefault(host, []).append(number)
        self._draw = draw
        self.workers = [self._worker(number, role) for number, role in enumerate(roles)]
        """Those that have left too."""
        self._sources: dict[int, SimWorker] = {}
        """Draining workers by the request whose KV nobody has read from them yet."""
        self._ended = 0
        """Lives before this one have ended."""

    @property
    def unfinished(self) -> bool:
        """Whether there is a request that has neither ended nor was refused."""
        while self._ended < len(self.lives):
            life = self.lives[self._ended]
            if life.ended_s is None and not life.refused:
                return True
            self._ended += 1
        return False

    def of(self, role: Role) -> list[SimWorker]:
        """The workers of a role."""
        return [worker for worker in self.workers if worker.role is role and not worker.ended]

    def join(self, role: Role) -> SimWorker:
        """A worker more, on a host of its own that has nothing cached. Its dispatcher is not
        told."""
        number, host = len(self.workers), max(self._caches, default=-1) + 1
        blocks = self.config.cache_tokens // BLOCK_TOKENS
        self._caches[host] = PrefixCache(host, blocks, self.index)
        self.host_of[number] = host
        self.on_host[host] = [number]
        self.workers.append(self._worker(number, role))
        return self.workers[-1]

    def leave(self, worker: SimWorker) -> None:
        """A worker that is empty leaves; with the last one of its host go its prefixes."""
        worker.ended = True
        host = self.host_of[worker.number]
        self.on_host[host].remove(worker.number)
        if not self.on_host[host]:
            self._caches[host].clear()

    def _worker(self, number: int, role: Role) -> SimWorker:
        config = self.config
        return SimWorker(
            number,
            role,
            config.spec,
            self.events,
            self._caches[self.host_of[number]],
            self.gaps,
            self,
            seed=config.seed * 100_003 + number,
            speed=max(0.5, self._draw.gauss(1.0, config.speed_spread)),
        )

    def start(self, arrivals: Sequence[Arrival], copies: int) -> None:
        """Plans the requests, each with the target that it is judged by."""
        self._copies = copies
        self._arrivals = iter(arrivals)
        self._next()

    def _next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self.events.at(arrival.at_s, lambda: self._arrive(arrival))

    def _arrive(self, arrival: Arrival) -> None:
        self._next()
        line, config = arrival.line, self.config
        batch = line.batch or (config.batch_share > 0 and self._draw.random() < config.batch_share)
        idle_s = config.spec.cost.prefill_s(line.input_tokens, 0, config.spec.step_tokens)
        ttft_s = config.batch_ttft_target_s if batch else config.ttft_target_s
        itl_s = config.batch_itl_target_s if batch else config.itl_target_s
        life = Life(
            number=len(self.lives),
            arrived_s=self.events.now,
            prompt_tokens=line.input_tokens,
            output_tokens=line.output_tokens,
            max_tokens=max(config.max_tokens, line.output_tokens),
            blocks=arrival.blocks(self._copies),
            ttft_target_s=line.ttft_target_s or default_ttft_s(ttft_s, idle_s),
            itl_target_s=line.itl_target_s or itl_s,
            batch=batch,
            tenant=line.tenant,
            priority=line.priority,
        )
        self.lives.append(life)
        self.dispatcher.arrive(life)

    def send(self, life: Life, worker: SimWorker, task: Task) -> None:
        """Gives a request to a worker, at the end of a call."""
        self.events.after(CALL_S, lambda: self._deliver(life, worker, task))

    def hand_over(self, life: Life, worker: SimWorker) -> None:
        """Sends a request with its KV to a decode worker, less what its host has of it."""
        life.task = Task.DECODE
        known = min(worker.cache.match(life.blocks), life.prompt_tokens)
        config = self.config
        seconds = (life.known_tokens - known) * config.kv_token_bytes / config.link_bytes_s
        self.events.after(2 * CALL_S + seconds, lambda: self._deliver(life, worker, Task.DECODE))

    def _deliver(self, life: Life, worker: SimWorker, task: Task) -> None:
        life.task = task
        worker.take(life)

    def admitted(self, worker: SimWorker, life: Life) -> None:
        source = self._sources.pop(life.number, None)
        if source is not None:
            source.unread -= 1
        self.dispatcher.admitted(worker, life)

    def prompt_done(self, worker: SimWorker, life: Life) -> None:
        self._let_go(worker, life)

    def preempted(self, worker: SimWorker, life: Life) -> None:
        self._let_go(worker, life)

    def _let_go(self, worker: SimWorker, life: Life) -> None:
        if worker.draining and life.number not in self._sources:
            self._sources[life.number] = worker
            worker.unread += 1
        self.dispatcher.go_on(life)

    def changed(self, worker: SimWorker) -> None:
        self.dispatcher.changed(worker)

    def finished(self, _worker: SimWorker, life: Life) -> None:
        life.ended_s = self.events.now
        self.dispatcher.finished(life)
