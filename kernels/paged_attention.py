"""Attention of ragged queries over keys and values in pool blocks.

Gathers what the plan names and attends to it with torch's own fused attention. Keys that
the plan does not name are never read, whatever the unused slots of a block hold.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from kernels.paged_plan import AttentionPlan, ManyQueries, SingleQueries

PagedAttention = Callable[[Tensor, Tensor, AttentionPlan, float], Tensor]


def paged_attention(query: Tensor, layer_kv: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """softmax(query @ keys.T * scale) @ values for each query over its own sequence.

    `query`: [tokens, heads, dim]. `layer_kv`: one layer's strided view of a pool,
    [blocks, 2, block_size, kv_heads, dim]. Returns [tokens, heads, dim].
    """
    keys, values = _token_rows(layer_kv, plan)
    kv_heads = layer_kv.shape[-2]
    if plan.all_single:
        part = plan.parts[0]
        assert isinstance(part, SingleQueries)
        return _attend_single(query, keys, values, part, kv_heads, scale)
    out = query.new_empty(query.shape)
    for part in plan.parts:
        if isinstance(part, SingleQueries):
            out[part.query_rows] = _attend_single(
                query[part.query_rows], keys, values, part, kv_heads, scale
            )
        else:
            rows = slice(part.first_row, part.first_row + part.queries)
            out[rows] = _attend_many(query[rows], keys, values, part, kv_heads, scale)
    return out


def _token_rows(layer_kv: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
    """Keys and values as [rows, kv_heads * dim]: the pool from this layer's first token on."""
    to_values, width = layer_kv.stride(1), layer_kv.stride(2)
    at, shape, stride = layer_kv.storage_offset(), (plan.layer_rows, width), (width, 1)
    return layer_kv.as_strided(shape, stride, at), layer_kv.as_strided(
        shape, stride, at + to_values
    )


def _attend_single(
    query: Tensor, keys: Tensor, values: Tensor, part: SingleQueries, kv_heads: int, scale: float
) -> Tensor:
    sequences, heads, dim = query.shape
    shape = (sequences, -1, kv_heads, dim)
    # [sequences, kv_heads, queries or keys, dim]: the heads that share keys are the queries
    grouped = query.reshape(sequences, kv_heads, heads // kv_heads, dim)
    key = keys.index_select(0, part.key_rows).view(shape).transpose(1, 2)
    value = values.index_select(0, part.key_rows).view(shape).transpose(1, 2)
    out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=part.mask, scale=scale)
    return out.reshape(sequences, heads, dim)


def _attend_many(
    query: Tensor, keys: Tensor, values: Tensor, part: ManyQueries, kv_heads: int, scale: float
) -> Tensor:
    queries, heads, dim = query.shape
    group = heads // kv_heads
    # [kv_heads, group, queries or keys, dim], keys shared within a group without a copy
    grouped = query.view(queries, kv_heads, group, dim).permute(1, 2, 0, 3)
    shape = (-1, kv_heads, 1, dim)
    key = keys.index_select(0, part.key_rows).view(shape).permute(1, 2, 0, 3)
    value = values.index_select(0, part.key_rows).view(shape).permute(1, 2, 0, 3)
    out = F.scaled_dot_product_attention(
        grouped,
        key.expand(-1, group, -1, -1),
        value.expand(-1, group, -1, -1),
        attn_mask=part.mask,
        scale=scale,
    )
    return out.permute(2, 0, 1, 3).reshape(queries, heads, dim)
