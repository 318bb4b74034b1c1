"""Attention of ragged queries over keys and values in pool blocks.

Gathers what the plan names and attends to it with torch's own fused attention, or with plain
products where scores are soft-capped, which the fused one cannot do. Keys that the plan does
not name are never read, whatever the unused slots of a block hold.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.paged_plan import AttentionPlan, ManyQueries, SingleQueries

PagedAttention = Callable[[Tensor, Tensor, AttentionPlan, float, float | None], Tensor]


def paged_attention(
    query: Tensor,
    layer_kv: Tensor,
    plan: AttentionPlan,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """softmax(query @ keys.T * scale) @ values for each query over its own sequence.

    `query`: [tokens, heads, dim]. `layer_kv`: one layer's strided view of a pool,
    [blocks, 2, block_size, kv_heads, dim]. With `softcap`, scores s become
    softcap * tanh(s / softcap) before the softmax. Returns [tokens, heads, dim].
    """
    keys, values = _token_rows(layer_kv, plan)
    kv_heads = layer_kv.shape[-2]
    if plan.all_single:
        part = plan.parts[0]
        assert isinstance(part, SingleQueries)
        return _attend_single(query, keys, values, part, kv_heads, scale, softcap)
    out = query.new_empty(query.shape)
    for part in plan.parts:
        if isinstance(part, SingleQueries):
            out[part.query_rows] = _attend_single(
                query[part.query_rows], keys, values, part, kv_heads, scale, softcap
            )
        else:
            rows = slice(part.first_row, part.first_row + part.queries)
            out[rows] = _attend_many(query[rows], keys, values, part, kv_heads, scale, softcap)
    return out


def _token_rows(layer_kv: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
    """Keys and values as [rows, kv_heads * dim]: the pool from this layer's first token on."""
    to_values, width = layer_kv.stride(1), layer_kv.stride(2)
    at, shape, stride = layer_kv.storage_offset(), (plan.layer_rows, width), (width, 1)
    return layer_kv.as_strided(shape, stride, at), layer_kv.as_strided(
        shape, stride, at + to_values
    )


def _attend_single(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    part: SingleQueries,
    kv_heads: int,
    scale: float,
    softcap: float | None,
) -> Tensor:
    sequences, heads, dim = query.shape
    shape = (sequences, -1, kv_heads, dim)
    # [sequences, kv_heads, queries or keys, dim]: the heads that share keys are the queries
    grouped = query.reshape(sequences, kv_heads, heads // kv_heads, dim)
    key = keys.index_select(0, part.key_rows).view(shape).transpose(1, 2)
    value = values.index_select(0, part.key_rows).view(shape).transpose(1, 2)
    out = _attend(grouped, key, value, part.mask, scale, softcap)
    return out.reshape(sequences, heads, dim)


def _attend_many(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    part: ManyQueries,
    kv_heads: int,
    scale: float,
    softcap: float | None,
) -> Tensor:
    queries, heads, dim = query.shape
    group = heads // kv_heads
    # [kv_heads, group, queries or keys, dim], keys shared within a group without a copy
    grouped = query.view(queries, kv_heads, group, dim).permute(1, 2, 0, 3)
    shape = (-1, kv_heads, 1, dim)
    key = keys.index_select(0, part.key_rows).view(shape).permute(1, 2, 0, 3)
    value = values.index_select(0, part.key_rows).view(shape).permute(1, 2, 0, 3)
    key, value = key.expand(-1, group, -1, -1), value.expand(-1, group, -1, -1)
    out = _attend(grouped, key, value, part.mask, scale, softcap)
    return out.permute(2, 0, 1, 3).reshape(queries, heads, dim)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Dense attention over the last two dimensions, [..., queries or keys, dim]."""
    if softcap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    scores = torch.matmul(query, key.transpose(-1, -2)).float()
    scores = scores.mul_(scale / softcap).tanh_().mul_(softcap)
    if mask is not None:
        scores.masked_fill_(~mask, float("-inf"))
    return torch.matmul(scores.softmax(dim=-1).to(value.dtype), value)
