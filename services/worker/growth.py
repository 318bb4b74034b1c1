"""Follows how the room of a running sequence grows, in the engine's own steps.

The engine sets room aside for `growth_tokens` beyond what a sequence has, and for as many again
each time that it outgrows them. The run is told a token ahead of that, so that the fleet never
hears of less than what is set aside. Knows counts only.
"""

from engine.types import Request
from services.worker.runs import Run


class Growth:
    """The room of one run; belongs to the event loop."""

    def __init__(self, run: Run, request: Request, growth_tokens: int | None) -> None:
        """`growth_tokens`: None: room for the whole life was set aside."""
        self._run = run
        self._tokens = len(request.tokens)
        self._life = request.life_tokens
        self._growth_tokens = growth_tokens

    def sampled(self, tokens: int) -> None:
        """The engine sampled so many tokens more."""
        self._tokens += tokens
        held = self._run.cost.kv_tokens
        if self._growth_tokens is not None and held < self._life and self._tokens + 1 >= held:
            self._run.grow(min(self._life, held + self._growth_tokens))
