"""The least work that a step takes: floating-point operations, and bytes to and from memory.

From the model's shapes and the step's alone, so that achieved rates can be held against what the
device could do. Counted are the products of matrices, with a multiplication and an addition as
two operations; each weight that a step needs as read once, in the format in which it is held; KV
as read once by each chunk, and written once. Norms, rotations, activations and sampling, and the
activations' own bytes, are not counted: they are a few percent at most.

Exact but for two things that a shape does not tell: which experts run (those that as many random
choices would hit), and how prompt tokens spread over several chunks in one step (equal chunks).
"""

from dataclasses import dataclass

import torch

from engine.kv.layout import KVGroup, KVLayout
from engine.model_config import ModelConfig
from engine.steps import StepShape


@dataclass(frozen=True, slots=True)
class Work:
    """What has to be done at least."""

    flops: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Equal chunks of prompts, from one position on; in a step of one chunk, that one."""

    start: float
    tokens: float
    count: float

    @classmethod
    def of(cls, shape: StepShape) -> "_Chunks":
        if not shape.prompt_tokens:
            return cls(0.0, 0.0, 0.0)
        mean = shape.prompt_pairs / shape.prompt_tokens
        start = mean - (shape.prompt_tokens + 1) / 2
        if start >= 0:
            return cls(start, shape.prompt_tokens, 1.0)
        # Several that begin at their prompts' beginnings: in one, the mean token sees half of it.
        tokens = max(1.0, 2 * mean - 1)
        return cls(0.0, tokens, shape.prompt_tokens / tokens)

    def pairs(self, window: int | None) -> float:
        """Pairs of a token with those that it sees."""
        ended, begun = (_pairs(end, window) for end in (self.start + self.tokens, self.start))
        return self.count * (ended - begun)

    def read_tokens(self, window: int | None) -> float:
        """Tokens whose KV is read."""
        before = self.start if window is None else min(self.start, window - 1)
        return self.count * (before + self.tokens)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Tells the work of steps of one model."""

    model: ModelConfig
    layout: KVLayout

    def of(self, shape: StepShape) -> Work:
        """The work of one step."""
        products, weights = self._products(shape)
        attention = [self._attention(group, shape) for group in self.layout.groups]
        return Work(
            flops=products + sum(one.flops for one in attention),
            bytes=weights + sum(one.bytes for one in attention),
        )

    def _products(self, shape: StepShape) -> tuple[float, float]:
        """Operations with weights, and the weights' bytes."""
        model, tokens = self.model, shape.prompt_tokens + shape.sequences
        heads = 2 * model.heads + 2 * model.kv_heads
        everyone = model.layers * model.hidden_size * model.head_dim * heads
        used, read = 0.0, 0.0
        expert_layers = 0
        if (experts := model.experts) is not None:
            expert_layers = len(experts.layers)
            expert = 3 * model.hidden_size * experts.intermediate_size
            missed = (1 - experts.per_token / experts.count) ** tokens
            everyone += expert_layers * model.hidden_size * experts.count
            used = expert_layers * experts.per_token * expert
            read = expert_layers * experts.count * (1 - missed) * expert
        dense = 3 * model.hidden_size * model.intermediate_size
        everyone += (model.layers - expert_layers) * dense
        head = model.hidden_size * model.vocab_size
        flops = 2.0 * (tokens * (everyone + used) + shape.logits_rows * head)
        embedded = tokens * model.hidden_size
        parameters = everyone + read + embedded + (head if shape.logits_rows else 0)
        return flops, parameters * self._weight_bytes

    def _attention(self, group: KVGroup, shape: StepShape) -> Work:
        """Attention of one group's layers, over prompts and over sequences that decode."""
        chunks, context = _Chunks.of(shape), float(shape.context_tokens)
        if group.window is not None:
            context = min(context, shape.sequences * group.window)
        layers = len(group.layers)
        pairs = chunks.pairs(group.window) + context
        touched = chunks.read_tokens(group.window) + context + shape.prompt_tokens + shape.sequences
        token_bytes = 2 * group.kv_heads * group.head_dim * self.layout.dtype.itemsize
        return Work(
            flops=4.0 * layers * self.model.heads * group.head_dim * pairs,
            bytes=layers * touched * token_bytes,
        )

    @property
    def _weight_bytes(self) -> int:
        """Of one weight; those in a format that torch has no name for count as KV does."""
        dtype = getattr(torch, self.layout.weight_format, None)
        return (dtype if isinstance(dtype, torch.dtype) else self.layout.dtype).itemsize


def _pairs(tokens: float, window: int | None) -> float:
    """Pairs of the first `tokens` of a sequence with those that they see, themselves included."""
    growing = tokens if window is None else min(tokens, window)
    return growing * (growing + 1) / 2 + (tokens - growing) * growing
