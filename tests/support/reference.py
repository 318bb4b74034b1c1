"""What a request's output must be: the same engine, alone in the test's process."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from engine import Engine, EngineConfig, Request, SamplingParams

_TOGETHER = 12


class Reference:
    """Runs requests in one uninterrupted engine."""

    def __init__(self, model: Path, dtype: torch.dtype = torch.float32, **config) -> None:
        self.engine = Engine.load(model, EngineConfig(dtype=dtype, threads=1, **config))
        self._ids = itertools.count()

    def generate(self, prompt, *, choice: int = 0, **sampling) -> list[int]:
        """The tokens that follow `prompt` in a choice, an end token included."""
        [tokens] = self._choices(prompt, [choice], sampling)
        return tokens

    def generate_choices(self, prompt, n: int, **sampling) -> list[list[int]]:
        """The tokens of each of `n` choices, which go together."""
        return self._choices(prompt, range(n), sampling)

    def _choices(self, prompt, choices: Iterable[int], sampling) -> list[list[int]]:
        stops = frozenset(sampling.pop("stop_token_ids", ()))
        parameters = SamplingParams(**({"temperature": 0.0} | sampling), stop_token_ids=stops)
        requests = []
        for choice in choices:
            request_id = f"reference-{next(self._ids)}"
            salt = request_id.encode()  # so that nothing is ever found in the cache
            requests.append(
                Request(request_id, tuple(prompt), parameters, choice=choice, salt=salt)
            )
        return run_together(self.engine, requests)

    def generate_all(self, work: Iterable[tuple[Sequence[int], int]]) -> list[list[int]]:
        """What follows each (prompt, number of tokens), greedily, end tokens or not.

        Several go at a time: one engine's batch, which takes much less time than one by one.
        """
        requests = []
        for prompt, count in work:
            request_id = f"reference-{next(self._ids)}"
            sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
            salt = request_id.encode()
            requests.append(Request(request_id, tuple(prompt), sampling, salt=salt))
        return run_together(self.engine, requests)


def run_together(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    """Each request's tokens, a few requests at a time. The engine must be idle."""
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for first in range(0, len(requests), _TOGETHER):
        for request in requests[first : first + _TOGETHER]:
            engine.admit(request)
            engine.start(request.request_id, ())
        while engine.has_work:
            for output in engine.step():
                tokens[output.request_id] += [token.token_id for token in output.tokens]
    return list(tokens.values())
