"""The names of one sequence's blocks. Knows tokens and the layout; no pool and no block."""

from collections.abc import Sequence

from baton.naming import BlobName, ChainName, blob_name, chain_next, chain_root
from engine.kv.layout import KVLayout


class SequenceNames:
    """Names of full blocks, made once as the sequence grows, and of tails on demand."""

    def __init__(self, layout: KVLayout, salt: bytes) -> None:
        self._block_size = layout.block_size
        self._groups = range(len(layout.groups))
        self._chain = [chain_root(layout.fingerprint, salt)]
        self._full: list[tuple[BlobName, ...]] = []

    def grow(self, tokens: Sequence[int]) -> None:
        """Name the full blocks of `tokens`, which begin with those of the calls before."""
        size = self._block_size
        for start in range(len(self._full) * size, len(tokens) - size + 1, size):
            chain = chain_next(self._chain[-1], tokens[start : start + size])
            self._chain.append(chain)
            self._full.append(self._blobs(chain))

    def full(self, index: int) -> tuple[BlobName, ...]:
        """By group, the names of full block `index`, among those grown to."""
        return self._full[index]

    def tail(self, tokens: Sequence[int], boundary: int) -> tuple[BlobName, ...]:
        """By group, the names of the block that `boundary` lies inside, holding the tokens
        up to there alone."""
        index = boundary // self._block_size
        part = tokens[index * self._block_size : boundary]
        return self._blobs(chain_next(self._chain[index], part))

    def _blobs(self, chain: ChainName) -> tuple[BlobName, ...]:
        return tuple(blob_name(chain, group) for group in self._groups)
