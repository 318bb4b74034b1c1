"""What a worker is at, in the terms in which the fleet places requests.

Reads the engine's load, the runs that it has not started yet, and the cost of steps; knows no
wire and no heartbeat.
"""

import math
from collections.abc import Callable

from baton.policy.cost import StepCost, pairs
from baton.policy.fleet import Load
from engine.steps import EngineLoad
from services.worker.costs import CostModel
from services.worker.runs import Runs

Current = Callable[[], EngineLoad]
"""The engine's load at this moment."""


class LoadMeter:
    """Tells the load of one worker. Belongs to the event loop."""

    def __init__(
        self,
        current: Current,
        runs: Runs,
        costs: CostModel,
        *,
        max_sequences: int,
        step_tokens: int,
        lookahead_steps: float,
    ) -> None:
        """`lookahead_steps`: full steps of prompt work that the worker wants to have ahead."""
        self._current = current
        self._runs = runs
        self._costs = costs
        self._max_sequences = max_sequences
        self._step_tokens = step_tokens
        self._lookahead_steps = lookahead_steps
        self._was_busy = False

    @property
    def lookahead_s(self) -> float:
        """Prompt work that the worker wants to be given ahead, in seconds."""
        return self._lookahead_s(self._costs.cost)

    def load(self) -> Load:
        """The load as the fleet hears of it."""
        cost, engine = self._costs.cost, self._current()
        target = self._runs.itl_target_s
        return Load(
            prompt_backlog_s=self._backlog_s(cost, engine),
            context_tokens=engine.context_tokens,
            itl_target_s=target,
            sequence_limit=None if target is None else self._limit(cost, engine, target),
            decode_step_s=self._costs.decode_step_s,
        )

    def ran_low(self) -> bool:
        """Whether the prompt work ahead fell below half of what is wanted since the last call."""
        cost = self._costs.cost
        is_busy = self._backlog_s(cost, self._current()) >= 0.5 * self._lookahead_s(cost)
        fell, self._was_busy = self._was_busy and not is_busy, is_busy
        return fell

    def recompute_s(self) -> float:
        """Seconds that a token of a prompt takes, with its share of a full step."""
        return self._full_step_s(self._costs.cost) / self._step_tokens

    def _lookahead_s(self, cost: StepCost) -> float:
        return self._lookahead_steps * self._full_step_s(cost)

    def _full_step_s(self, cost: StepCost) -> float:
        tokens = self._step_tokens
        return cost.step_s(prompt_tokens=tokens, prompt_pairs=pairs(tokens, 0))

    def _limit(self, cost: StepCost, engine: EngineLoad, target_s: float) -> int:
        """Sequences that can decode within the target, each as long as those of now."""
        mean = engine.context_tokens / max(1, engine.sequences)
        return cost.sequences_within(target_s, mean, self._max_sequences)

    def _backlog_s(self, cost: StepCost, engine: EngineLoad) -> float:
        """Prompts are computed in what decoding sequences leave of each step, beside them."""
        ahead = self._runs.unstarted_prompts
        tokens = engine.prompt_tokens_left + sum(one.tokens for one in ahead)
        if not tokens:
            return 0.0
        more = sum(pairs(one.tokens, one.context) for one in ahead)
        steps = math.ceil(tokens / max(1, self._step_tokens - engine.sequences))
        beside_s = cost.decode_step_s(engine.sequences, engine.context_tokens)
        prompts_s = cost.step_s(prompt_tokens=tokens, prompt_pairs=engine.prompt_pairs_left + more)
        return prompts_s - cost.base_s + steps * beside_s
