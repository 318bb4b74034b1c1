"""A mask for tests of the engine: some sequences of tokens are the language."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from engine.errors import MaskError


class ListedMask:
    """Allows what leads to one of `texts`; fails as it is told to."""

    def __init__(
        self,
        texts: Collection[tuple[int, ...]],
        emitted: Sequence[int] = (),
        *,
        fill_error: Exception | None = None,
        accept_error: Exception | None = None,
    ) -> None:
        self.texts = texts
        self.output = list(emitted)
        self.fill_error = fill_error
        self.accept_error = accept_error
        self.fills = 0

    def _next(self) -> set[int]:
        count = len(self.output)
        fitting = [text for text in self.texts if list(text[:count]) == self.output]
        return {text[count] for text in fitting if len(text) > count}

    @property
    def may_end(self) -> bool:
        return tuple(self.output) in self.texts

    @property
    def must_end(self) -> bool:
        return self.may_end and not self._next()

    def fill(self, bits: Tensor) -> None:
        self.fills += 1
        if self.fill_error is not None:
            raise self.fill_error
        allowed = torch.zeros(len(bits) * 32, dtype=torch.int64)
        allowed[list(self._next())] = 1
        words = (allowed.view(-1, 32) << torch.arange(32)).sum(1)
        bits.copy_(torch.where(words >= 2**31, words - 2**32, words).to(torch.int32))

    def accept(self, token: int) -> None:
        if self.accept_error is not None:
            raise self.accept_error
        if token not in self._next():
            raise MaskError(f"{token} was not allowed after {self.output}")
        self.output.append(token)

    def fork(self) -> "ListedMask":
        return ListedMask(self.texts, self.output, accept_error=self.accept_error)
