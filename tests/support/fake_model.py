"""A model for tests of the engine: its KV is the tokens themselves, its logits a function of
what it reads back through the block tables. A wrong, stale or foreign block shows at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kv.layout import KVGroup
from engine.model_config import FULL, ModelConfig, RopeConfig
from engine.models.batch import ForwardBatch, GroupBatch

MODULUS = 1_000_003


class FakeKernels:
    family = "fake"


class FakeModel:
    """One layer per group; the next token hangs on every token that each group sees."""

    def __init__(self, windows: Sequence[int | None], vocab_size: int = 97) -> None:
        self.windows = windows
        self.vocab_size = vocab_size
        self.kernels = FakeKernels()
        self.fail_next = False
        self.most_rows = 0
        """Most rows of logits that were made at once."""

    def kv_groups(self) -> tuple[KVGroup, ...]:
        return tuple(
            KVGroup("full" if window is None else f"window-{window}", (layer,), 1, 1, window)
            for layer, window in enumerate(self.windows)
        )

    def hidden(self, batch: ForwardBatch, kv: Sequence[Tensor]) -> Tensor:
        if self.fail_next:
            raise RuntimeError("the model failed")
        for group, pool in zip(batch.groups, kv, strict=True):
            pool[group.slot_blocks, 0, 0, group.slot_offsets, 0, 0] = batch.token_ids.to(pool.dtype)
            pool[group.slot_blocks, 0, 1, group.slot_offsets, 0, 0] = batch.positions.to(pool.dtype)
        self._step = batch, kv
        return torch.arange(len(batch.token_ids))  # what a row sees is read when it is wanted

    def logits(self, x: Tensor) -> Tensor:
        self.most_rows = max(self.most_rows, len(x))
        return torch.stack([self._logits(self._state(self._row(row))) for row in x.tolist()])

    def _row(self, row: int) -> list[list[int]]:
        batch, kv = self._step
        sequence = next(i for i, end in enumerate(batch.query_starts[1:]) if row < end)
        position = int(batch.positions[row])
        return [
            self._seen(group, pool, sequence, position, window)
            for group, pool, window in zip(batch.groups, kv, self.windows, strict=True)
        ]

    def _logits(self, state: int) -> Tensor:
        ids = torch.arange(self.vocab_size, dtype=torch.int64)
        return ((ids * 7919 + state) * 104_729 % MODULUS).float() / MODULUS * 4

    def _seen(
        self, group: GroupBatch, pool: Tensor, sequence: int, position: int, window: int | None
    ) -> list[int]:
        size = pool.shape[3]
        start = 0 if window is None else max(0, position - window + 1)
        tokens = []
        for p in range(start, position + 1):
            block = group.block_tables[sequence, p // size - group.first_block[sequence]]
            token, stored = pool[block, 0, :, p % size, 0, 0].tolist()
            assert stored == p, f"position {p} reads the KV of position {stored}"
            tokens.append(int(token))
        return tokens

    def _state(self, seen: Sequence[Sequence[int]]) -> int:
        state = 1
        for tokens in seen:
            for token in tokens:
                state = (state * 131 + token + 7) % MODULUS
        return state

    def logits_after(self, tokens: Sequence[int]) -> Tensor:
        """What a right engine draws from after `tokens`, [vocab]."""
        seen = [tokens if window is None else tokens[-window:] for window in self.windows]
        return self._logits(self._state(seen))

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """What a right engine puts out after `tokens`."""
        tokens = list(tokens)
        for _ in range(count):
            tokens.append(int(self.logits_after(tokens).argmax()))
        return tokens[-count:]


def fake_config(
    vocab_size: int, max_position: int, eos_token_ids: frozenset[int] = frozenset()
) -> ModelConfig:
    rope = RopeConfig(theta=10_000.0)
    return ModelConfig(
        architecture="fake", vocab_size=vocab_size, hidden_size=1, layers=2, heads=1, kv_heads=1,
        head_dim=2, intermediate_size=1, max_position=max_position, rms_eps=1e-6, rope=rope,
        local_rope=rope, layer_types=(FULL, FULL), sliding_window=None, attention_scale=1.0,
        tied=True, attention_bias=False, mlp_bias=False, eos_token_ids=eos_token_ids,
        bos_token_id=None,
    )  # fmt: skip
