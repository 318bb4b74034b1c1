"""A worker: an engine that computes prompts in chunks and decodes a batch, step by step.

Each step takes one token of every decoding sequence and chunks of prompts in the order in which
they came, as far as the step's budget goes. A run of steps in which only the same batch decodes
is one event; its end moves when something arrives. Room for sequences grows as in the engine:
where it can't, the sequence that began last is handed back with its KV. One that drains finishes
its prompts and hands everything else back.
"""

import heapq
import random
from collections import Counter, deque
from dataclasses import dataclass

from baton.policy.cost import StepCost, pairs
from baton.policy.fleet import GROWTH_TOKENS, Role, Task
from bench.sim.cache import PrefixCache
from bench.sim.events import Events
from bench.sim.hooks import Hooks
from bench.sim.life import Life
from bench.sim.measure import Gaps
from bench.sim.steps import Run


@dataclass(frozen=True, slots=True)
class Spec:
    """What all workers of a simulation are like."""

    cost: StepCost
    sequences: int
    kv_tokens: int
    step_tokens: int
    lookahead_s: float
    noise: float = 0.0
    """Standard deviation of a step's time, relative."""


class SimWorker:
    """One engine. `speed` multiplies the time of its steps, which its cost model doesn't know."""

    def __init__(
        self,
        number: int,
        role: Role,
        spec: Spec,
        events: Events,
        cache: PrefixCache,
        gaps: Gaps,
        hooks: Hooks,
        seed: int,
        speed: float = 1.0,
    ) -> None:
        self.number = number
        self.role = role
        self.spec = spec
        self.cache = cache
        self.busy_s = 0.0
        self.running = 0
        """Sequences that have room."""
        self.kv_tokens = 0
        self.context_tokens = 0
        self.itl_targets: Counter[float] = Counter()
        self.waiting: deque[Life] = deque()
        """Arrived; there is no room for them yet."""
        self.prompts: deque[Life] = deque()
        self.coming = 0
        """Requests that are on their way."""
        self.draining = False
        self.unread = 0
        """Requests that it let go of since then, whose KV nobody has read yet."""
        self.ended = False
        """It has left the fleet."""
        self.batch: dict[int, Life] = {}
        """Decoding, in the order in which they began."""
        self._events = events
        self._gaps = gaps
        self._hooks = hooks
        self._speed = speed
        self._random = random.Random(seed)
        self._joining: list[Life] = []
        self._fresh: list[Life] = []
        """Decoding since the last step."""
        self._due: list[tuple[int, int, Life]] = []
        """By decode step: lives that end or grow then."""
        self._step = 0
        self._run: Run | None = None
        self._chunks: list[tuple[Life, int]] | None = None
        """Of the step that is running; None: it decodes alone, or nothing runs."""

    @property
    def expected(self) -> int:
        """Requests that are here or on their way."""
        return self.running + len(self.waiting) + self.coming

    def backlog_s(self) -> float:
        """Predicted time for the prompts that are here."""
        cost, most = self.spec.cost, self.spec.step_tokens
        total = sum(cost.prefill_s(one.left_tokens, one.done_tokens, most) for one in self.prompts)
        for life in self.waiting:
            if life.task is not Task.DECODE:
                total += cost.prefill_s(life.known_tokens, 0, most)
        return total

    def sequence_limit(self) -> int:
        """Sequences that hold the tightest target."""
        if not self.batch or not self.itl_targets:
            return self.spec.sequences
        mean = self.context_tokens / len(self.batch)
        return self.spec.cost.sequences_within(min(self.itl_targets), mean, self.spec.sequences)

    def take(self, life: Life) -> None:
        """Takes a request in for its task; it waits here while there is no room."""
        self.coming = max(0, self.coming - 1)
        if self.draining and life.task is Task.DECODE:
            self._hooks.preempted(self, life)
            return
        self.waiting.append(life)
        self._admit()
        if self._run is not None:
            self._cut(self._run)
        elif self._chunks is None:
            self._begin()

    def drain(self) -> None:
        """It is to leave: what decodes is handed back at the end of the step that runs, and the
        prompts that are here as soon as they are computed."""
        self.draining = True
        if self._run is not None:
            self._cut(self._run)
        elif self._chunks is None:
            self._go_on()

    def _admit(self) -> None:
        while self.waiting:
            life = self.waiting[0]
            room = life.room_tokens
            if self.running >= self.spec.sequences or self.kv_tokens + room > self.spec.kv_tokens:
                break
            self.waiting.popleft()
            self.running += 1
            self.kv_tokens += room
            life.promised_tokens = room
            if life.task is Task.DECODE:
                self._joining.append(life)
                self.cache.add(life.blocks)
            else:
                cached = min(self.cache.match(life.blocks), life.known_tokens - 1)
                life.done_tokens, life.left_tokens = cached, life.known_tokens - cached
                if life.emitted == 0:
                    life.cached_tokens = cached
                self.prompts.append(life)
            if life.task is not Task.PREFILL:
                self.itl_targets[life.itl_target_s] += 1
            self._hooks.admitted(self, life)

    def _begin(self) -> None:
        """The next step, or run of steps, if there is anything to compute."""
        for life in self._joining:
            self._join(life)
        self._joining.clear()
        if self.prompts:
            self._begin_mixed()
        elif self.batch:
            self._begin_run()

    def _join(self, life: Life) -> None:
        life.decode_since_s = self._events.now
        self.batch[life.number] = life
        self.context_tokens += life.known_tokens
        life.finish_step = self._step + life.output_tokens - life.emitted
        self._fresh.append(life)
        self._plan(life, life.known_tokens)

    def _plan(self, life: Life, context_tokens: int) -> None:
        grow_step = self._step + max(1, life.promised_tokens - context_tokens)
        if life.promised_tokens >= life.life_tokens:
            grow_step = life.finish_step
        heapq.heappush(self._due, (min(life.finish_step, grow_step), life.number, life))

    def _begin_mixed(self) -> None:
        budget = max(1, self.spec.step_tokens - len(self.batch))
        chunks, tokens, work = [], 0, 0
        for life in self.prompts:
            if tokens >= budget:
                break
            count = min(life.left_tokens, budget - tokens)
            chunks.append((life, count))
            tokens += count
            work += pairs(count, life.done_tokens)
        seconds = self._noisy(
            self.spec.cost.step_s(
                prompt_tokens=tokens,
                prompt_pairs=work,
                sequences=len(self.batch),
                context_tokens=self.context_tokens,
            )
        )
        self._chunks = chunks
        self._events.after(seconds, lambda: self._end_mixed(seconds))

    def _end_mixed(self, seconds: float) -> None:
        chunks, self._chunks = self._chunks or [], None
        self.busy_s += seconds
        if self.batch:
            self._decoded(1, seconds)
        for life, count in chunks:
            life.done_tokens += count
            life.left_tokens -= count
        while self.prompts and self.prompts[0].left_tokens == 0:
            self._computed(self.prompts.popleft())
        self._hooks.changed(self)
        self._go_on()

    def _computed(self, life: Life) -> None:
        self.cache.add(life.blocks)
        if life.first_s is None:
            life.first_s = self._events.now
        else:
            self._gaps.add(self._events.now - life.last_s, 1)
        life.last_s = self._events.now
        life.emitted += 1
        if life.emitted >= life.output_tokens:
            self._leave(life)
            self._hooks.finished(self, life)
        elif life.task is Task.PREFILL or self.draining:
            self._leave(life)
            self._hooks.prompt_done(self, life)
        else:
            self._join(life)

    def _begin_run(self) -> None:
        count = 1 if self._fresh else max(1, self._due[0][0] - self._step)
        cost, size = self.spec.cost, len(self.batch)
        factor = self._noisy(1.0)
        first_s = cost.decode_step_s(size, self.context_tokens) * factor
        run = Run(self._events.now, count, first_s, cost.context_token_s * size * factor)
        self._run = run
        self._events.after(run.length_s(count), lambda: self._end_run(run, count))

    def _cut(self, run: Run) -> None:
        """Ends a run of steps with the one that is running."""
        count = run.steps_until(self._events.now)
        if count < run.count:
            run.count = count
            self._events.at(run.start_s + run.length_s(count), lambda: self._end_run(run, count))

    def _end_run(self, run: Run, count: int) -> None:
        if self._run is not run or run.count != count:
            return
        self._run = None
        seconds = run.length_s(count)
        self.busy_s += seconds
        self._decoded(count, seconds)
        self._go_on()

    def _go_on(self) -> None:
        if self.draining:
            self._hand_back()
        self._admit()
        self._begin()

    def _hand_back(self) -> None:
        """Lets go of everything that decodes, or is here to decode."""
        arrived = [life for life in self.waiting if life.task is Task.DECODE]
        self.waiting = deque(life for life in self.waiting if life.task is not Task.DECODE)
        for life in self._joining:
            self._leave(life)
        decoding = list(self.batch.values())
        for life in decoding:
            self._interrupt(life)
        self._fresh.clear()
        leaving = [*arrived, *self._joining, *decoding]
        self._joining.clear()
        for life in leaving:
            life.moved += 1
            self._hooks.preempted(self, life)

    def _decoded(self, steps: int, seconds: float) -> None:
        """Each of the batch has `steps` more tokens."""
        now, size = self._events.now, len(self.batch)
        for life in self._fresh:
            self._gaps.add(now - life.last_s, 1)
        self._gaps.add(seconds / steps, size * steps - len(self._fresh))
        self._fresh.clear()
        self._step += steps
        self.context_tokens += size * steps
        growing = []
        while self._due and self._due[0][0] <= self._step:
            _, _, life = heapq.heappop(self._due)
            if self.batch.get(life.number) is not life:
                continue
            if life.finish_step > self._step:
                growing.append(life)
                continue
            life.emitted = life.output_tokens
            life.last_s = now
            self._drop(life)
            self._hooks.finished(self, life)
        for life in growing:
            if self.batch.get(life.number) is life:
                self._grow(life)

    def _grow(self, life: Life) -> None:
        more = min(life.life_tokens, life.promised_tokens + GROWTH_TOKENS) - life.promised_tokens
        while self.kv_tokens + more > self.spec.kv_tokens and len(self.batch) > 1:
            victim = next(reversed(self.batch.values()))
            victim.preempted += 1
            self._interrupt(victim)
            self._hooks.preempted(self, victim)
            if victim is life:
                return
        self.kv_tokens += more
        life.promised_tokens += more
        emitted = life.output_tokens - (life.finish_step - self._step)
        self._plan(life, life.prompt_tokens + emitted)

    def _interrupt(self, life: Life) -> None:
        """Takes a life out of the batch that is not at its end."""
        life.emitted = life.output_tokens - (life.finish_step - self._step)
        life.last_s = self._events.now
        self._drop(life)

    def _drop(self, life: Life) -> None:
        """Takes a life out of the batch; its `emitted` is up to date."""
        del self.batch[life.number]
        self.context_tokens -= life.known_tokens
        self._leave(life)

    def _leave(self, life: Life) -> None:
        self.running -= 1
        self.kv_tokens -= life.promised_tokens
        if life.task is not Task.PREFILL:
            self.itl_targets[life.itl_target_s] -= 1
            if not self.itl_targets[life.itl_target_s]:
                del self.itl_targets[life.itl_target_s]
        self._hooks.changed(self)

    def _noisy(self, seconds: float) -> float:
        noise = self.spec.noise
        factor = self._random.lognormvariate(-noise * noise / 2, noise) if noise else 1.0
        return seconds * factor * self._speed
