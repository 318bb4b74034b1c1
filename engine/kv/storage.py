"""The memory of the KV pools. Knows bytes and blocks; not who holds them or what they are."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.errors import EngineError
from engine.kv.layout import KVLayout


class KVStorage:
    """One block-major tensor per group: a block is one contiguous range of bytes."""

    def __init__(self, layout: KVLayout, blocks: Sequence[int], device: str) -> None:
        self.tensors: tuple[Tensor, ...] = tuple(
            # Zeros, since masked slots are still multiplied: NaN in one would reach the output.
            torch.zeros((count, *layout.block_shape(group)), dtype=layout.dtype, device=device)
            for group, count in enumerate(blocks)
        )
        """By group, [blocks, layers, 2, block_size, kv_heads, head_dim]."""
        self._bytes: list[np.ndarray] = []
        if all(pool.device.type == "cpu" for pool in self.tensors):
            self._bytes = [
                pool.view(len(pool), -1).view(torch.uint8).numpy() for pool in self.tensors
            ]

    def view(self, group: int, block: int) -> memoryview:
        """The writable bytes of one block, contiguous."""
        if not self._bytes:
            raise EngineError("the KV pools are not in host memory")
        return memoryview(self._bytes[group][block])

    def clear(self, group: int, block: int, used_tokens: int = 0) -> None:
        """Zero the slots of a block from `used_tokens` on."""
        self.tensors[group][block, :, :, used_tokens:] = 0
