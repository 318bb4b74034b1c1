"""Sequences that leave between two steps: the blocks that they take along, and their last outputs.

Knows the cache; not why they leave, and not who else is there.
"""

from collections.abc import Iterator

from engine.kv.cache import KVCache
from engine.sequence import LiveSequence
from engine.types import BlockRef, FinishReason, SequenceOutput


class Departures:
    """Last outputs that no step has put out yet, by request. Not thread-safe."""

    def __init__(self, cache: KVCache, checkpoint_blocks: int) -> None:
        self._cache = cache
        self._checkpoint_blocks = checkpoint_blocks
        self._outputs: dict[str, SequenceOutput] = {}

    def __len__(self) -> int:
        return len(self._outputs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def add(self, sequence: LiveSequence, reason: FinishReason, *, started: bool) -> None:
        """Pin what a resume of the sequence needs; nothing, if it was not started. Only before
        its blocks are given back."""
        exports = self._exports(sequence) if started else []
        request = sequence.request
        self._outputs[request.request_id] = SequenceOutput(
            request_id=request.request_id,
            tokens=(),
            computed_tokens=min(sequence.computed, len(request.prompt)),
            exports=tuple(exports),
            finish_reason=reason,
            kv_tokens=sequence.computed,
        )

    def _exports(self, sequence: LiveSequence) -> list[BlockRef]:
        size = self._cache.layout.block_size
        boundary = sequence.boundary(size)
        exports = self._cache.export_rest(sequence.kv, boundary, self._checkpoint_blocks)
        if boundary % size:
            exports += self._cache.export_tail(sequence.kv, sequence.tokens, boundary)
        return exports

    def take(self) -> list[SequenceOutput]:
        """The outputs, in the order in which the sequences left; they are the caller's now."""
        outputs = list(self._outputs.values())
        self._outputs.clear()
        return outputs

    def drop(self, request_id: str) -> None:
        """Forget the request's output, if it is here, and release its exports."""
        output = self._outputs.pop(request_id, None)
        if output is not None:
            self._cache.release_exports(output.exports)

    @property
    def exports(self) -> list[BlockRef]:
        """The exports of all outputs: pinned, and known to nobody else."""
        return [ref for output in self._outputs.values() for ref in output.exports]
