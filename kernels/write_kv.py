"""Puts new tokens' keys and values where the block tables say."""

from collections.abc import Callable

from torch import Tensor

WriteKV = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


def write_kv(
    layer_kv: Tensor, key: Tensor, value: Tensor, slot_blocks: Tensor, slot_offsets: Tensor
) -> None:
    """Writes token i to block slot_blocks[i], place slot_offsets[i].

    `layer_kv`: one layer's strided view of a pool, [blocks, 2, block_size, kv_heads, dim].
    `key`, `value`: [tokens, kv_heads, dim]. No two tokens share a slot.
    """
    layer_kv[slot_blocks, 0, slot_offsets] = key
    layer_kv[slot_blocks, 1, slot_offsets] = value
