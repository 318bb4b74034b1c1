"""The two shapes of a layer: norms before each part, or before and after it.

They know no family: what attends and what feeds forward is handed in.
"""

from collections.abc import Callable

from torch import Tensor

from engine.layers import Attention, GroupStep, RMSNorm

FeedForward = Callable[[Tensor], Tensor]


class PreNormBlock:
    """Norm, attention, norm, feed-forward, each pair added to the residual stream."""

    def __init__(
        self,
        attention_norm: RMSNorm,
        attention: Attention,
        feed_forward_norm: RMSNorm,
        feed_forward: FeedForward,
    ) -> None:
        self._attention_norm, self._attention = attention_norm, attention
        self._feed_forward_norm, self._feed_forward = feed_forward_norm, feed_forward

    def __call__(self, x: Tensor, steps: tuple[GroupStep, ...]) -> Tensor:
        x.add_(self._attention(self._attention_norm(x), steps))
        return x.add_(self._feed_forward(self._feed_forward_norm(x)))


class SandwichBlock:
    """As PreNormBlock, with what each part gives normed before it is added."""

    def __init__(
        self,
        before_attention: RMSNorm,
        attention: Attention,
        after_attention: RMSNorm,
        before_feed_forward: RMSNorm,
        feed_forward: FeedForward,
        after_feed_forward: RMSNorm,
    ) -> None:
        self._before_attention, self._attention = before_attention, attention
        self._after_attention = after_attention
        self._before_feed_forward, self._feed_forward = before_feed_forward, feed_forward
        self._after_feed_forward = after_feed_forward

    def __call__(self, x: Tensor, steps: tuple[GroupStep, ...]) -> Tensor:
        x.add_(self._after_attention(self._attention(self._before_attention(x), steps)))
        return x.add_(self._after_feed_forward(self._feed_forward(self._before_feed_forward(x))))
