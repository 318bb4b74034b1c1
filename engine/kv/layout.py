"""What a model's KV looks like: its groups, the shape of a block, and a fingerprint of both.

A group is a set of layers that share one retention rule and so one block table. Everything
here is arithmetic on frozen values; it knows no pool, no sequence and no model code.
"""

import hashlib
import json
from dataclasses import asdict, dataclass

import torch

FINGERPRINT_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that keep the same tokens' keys and values."""

    name: str
    """`full` or `window-512`, for people and metrics."""
    layers: tuple[int, ...]
    """Layer numbers of the model, ascending; a layer's place here is its place in a block."""
    kv_heads: int
    head_dim: int
    window: int | None
    """None: every earlier token is seen. Else a query at position q sees q - window < p <= q."""


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Whose KV this is and how its blocks are laid out.

    Two processes may exchange blocks only where their fingerprints are equal.
    """

    model_digest: str
    weight_format: str
    """How the weights are held while computing, such as `bfloat16`: it decides rounding."""
    dtype: torch.dtype
    """Of keys and values in the pool."""
    block_size: int
    """Tokens of one block, the same in every group."""
    groups: tuple[KVGroup, ...]
    kernel_family: str
    """Which kernels' rounding the KV carries, such as `torch-reference`."""

    def block_shape(self, group: int) -> tuple[int, int, int, int, int]:
        """`(layers, 2, block_size, kv_heads, head_dim)`: one entry of the group's pool."""
        spec = self.groups[group]
        return len(spec.layers), 2, self.block_size, spec.kv_heads, spec.head_dim

    def block_bytes(self, group: int) -> int:
        """Bytes of one block of a group, over all of the group's layers."""
        elements = 1
        for size in self.block_shape(group):
            elements *= size
        return elements * self.dtype.itemsize

    def first_needed_block(self, group: int, position: int) -> int:
        """The first block that a query at `position` may see; 0 for full attention."""
        window = self.groups[group].window
        if window is None:
            return 0
        return max(0, position - window + 1) // self.block_size

    def blocks_for(self, group: int, boundary_tokens: int) -> range:
        """The blocks that a resume needs whose first query is at `boundary_tokens`."""
        end = -(-boundary_tokens // self.block_size)
        return range(min(self.first_needed_block(group, boundary_tokens), end), end)

    @property
    def fingerprint(self) -> str:
        """Hex digest over everything above."""
        described = {
            "model": self.model_digest,
            "weights": self.weight_format,
            "dtype": str(self.dtype).removeprefix("torch."),
            "block_size": self.block_size,
            "groups": [asdict(group) for group in self.groups],
            "kernels": self.kernel_family,
        }
        canonical = json.dumps(described, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:FINGERPRINT_CHARACTERS]
