"""What a sequence's mask lets be drawn next, and what is done where it lets nothing or fails.

    allowed  = what the mask lets follow as text
             + the end tokens, where the text may end and is long enough
             - what bad sequences forbid

An end token is never part of the text, so it is drawn only where the text is complete. A text
that nothing can follow ends with its last token, whatever the shortest length: a language that
is complete ends. Where nothing is left to draw, a text that may end ends without a token, and
any other fails. So does a sequence whose mask raises, and that sequence alone.

Knows tokens and numbers; no text.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.errors import MaskError
from engine.masks import LogitMask

T = TypeVar("T")

_BITS = 32


class Constrained:
    """The mask of one sequence, kept up with its output. Not thread-safe."""

    def __init__(
        self, mask: LogitMask, end_ids: frozenset[int], vocab_size: int, device: str
    ) -> None:
        self._mask = mask
        self._ends = torch.tensor(sorted(end_ids), dtype=torch.int64, device=device)
        self._vocab_size = vocab_size
        self._device = device
        self._bits = torch.zeros(-(-vocab_size // _BITS), dtype=torch.int32)
        self._places = torch.arange(_BITS, dtype=torch.int32, device=device)
        self.failure: Exception | None = None
        """What the mask failed with; nothing is drawn any more then."""

    def allowed(self, output: int, masked: frozenset[int]) -> Tensor | None:
        """Which tokens may be drawn after `output` tokens: bool [vocab] on the device.

        None where the sequence ends without another token: it is complete, or has failed.
        `masked` tokens may not be drawn.
        """
        return self._guarded(lambda: self._allowed(output, masked), None)

    def ended_by(self, token: int) -> bool:
        """Takes a token of the output, not an end token. Whether nothing can follow it."""
        return self._guarded(lambda: _accept(self._mask, token), False)

    def would_end_with(self, token: int) -> bool:
        """Whether nothing can follow `token`; the mask stays as it is."""
        return self._guarded(lambda: _accept(self._mask.fork(), token), False)

    def _allowed(self, output: int, masked: frozenset[int]) -> Tensor | None:
        mask = self._mask
        if mask.must_end and output:
            return None
        mask.fill(self._bits)
        allowed = self._unpacked()
        may_end = mask.may_end
        allowed[self._ends] = may_end
        if masked:
            allowed[torch.tensor(sorted(masked), device=self._device)] = False
        if bool(allowed.any()):
            return allowed
        if may_end and output:
            return None
        raise MaskError("no token can follow: all that the constraint allows are forbidden")

    def _unpacked(self) -> Tensor:
        if self._device == "cpu":
            packed = self._bits.numpy().view(np.uint8)
            unpacked = np.unpackbits(packed, bitorder="little")[: self._vocab_size]
            return torch.from_numpy(unpacked.view(np.bool_))
        bits = self._bits.to(self._device)[:, None] >> self._places
        return (bits & 1).flatten()[: self._vocab_size].bool()

    def _guarded(self, call: Callable[[], T], otherwise: T) -> T:
        """What `call` returns. Whatever a mask raises fails its sequence, not the engine."""
        if self.failure is not None:
            return otherwise
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - a mask is not ours
            self.failure = error
            return otherwise


def _accept(mask: LogitMask, token: int) -> bool:
    mask.accept(token)
    return mask.must_end
