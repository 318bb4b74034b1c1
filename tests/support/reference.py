"""What a request's output must be: the same engine, alone in the test's process."""

import itertools
from pathlib import Path

import torch

from engine import Engine, EngineConfig, Request, SamplingParams


class Reference:
    """Runs one request at a time, in one uninterrupted engine."""

    def __init__(self, model: Path, dtype: torch.dtype = torch.float32, **config) -> None:
        self.engine = Engine.load(model, EngineConfig(dtype=dtype, threads=1, **config))
        self._ids = itertools.count()

    def generate(self, prompt, *, choice: int = 0, **sampling) -> list[int]:
        """The tokens that follow `prompt` in a choice, an end token included."""
        request_id = f"reference-{next(self._ids)}"
        stops = frozenset(sampling.pop("stop_token_ids", ()))
        parameters = SamplingParams(**({"temperature": 0.0} | sampling), stop_token_ids=stops)
        salt = request_id.encode()  # so that nothing is ever found in the cache
        request = Request(request_id, tuple(prompt), parameters, choice=choice, salt=salt)
        self.engine.admit(request)
        self.engine.start(request_id, ())
        tokens = []
        while self.engine.has_work:
            for output in self.engine.step():
                tokens += [token.token_id for token in output.tokens]
        return tokens
