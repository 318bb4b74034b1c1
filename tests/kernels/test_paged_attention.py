"""Against a dense reference, over ragged batches, windows, shapes, strides and types."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels import kernels_for

CPU = kernels_for(torch.device("cpu"))


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int | None,
    scale: float,
    softcap: float | None = None,
) -> Tensor:
    """One sequence: query [n, heads, dim] over key and value [context, kv_heads, dim]."""
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, dim=1).double() for t in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    at = torch.arange(len(key))
    asking = at[len(key) - len(query) :, None]
    hidden = at > asking
    if window is not None:
        hidden |= at <= asking - window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


@dataclass
class Case:
    """A pool with some sequences in it; every slot that is not theirs holds NaN."""

    pool: Tensor
    tables: Tensor
    first_block: list[int]
    keys: list[Tensor]
    values: list[Tensor]
    layer: int


def make_case(
    contexts: Sequence[int],
    queries: Sequence[int],
    *,
    window: int | None = None,
    kv_heads: int = 2,
    dim: int = 16,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Case:
    torch.manual_seed(0)
    blocks, layers, layer = 80, 3, 1
    pool = torch.full((blocks, layers, 2, block_size, kv_heads, dim), float("nan"), dtype=dtype)
    ids = list(range(blocks))
    random.Random(0).shuffle(ids)
    keys = [torch.randn(context, kv_heads, dim, dtype=dtype) for context in contexts]
    values = [torch.randn(context, kv_heads, dim, dtype=dtype) for context in contexts]
    first, tables = [], []
    for index, (context, count) in enumerate(zip(contexts, queries, strict=True)):
        low = 0 if window is None else max(0, context - count - window + 1)
        first.append(low // block_size)
        table = [ids.pop() for _ in range(first[-1], -(-context // block_size))]
        tables.append(table)
        for position in range(low, context):
            block = table[position // block_size - first[-1]]
            pool[block, layer, 0, position % block_size] = keys[index][position]
            pool[block, layer, 1, position % block_size] = values[index][position]
    width = max(map(len, tables), default=0)
    rows = [table + [0] * (width - len(table)) for table in tables]
    table = torch.tensor(rows, dtype=torch.int64).reshape(len(tables), width)
    return Case(pool, table, first, keys, values, layer)


def attend(
    case: Case,
    query: Tensor,
    starts: list[int],
    window: int | None,
    softcap: float | None = None,
) -> Tensor:
    contexts = [len(key) for key in case.keys]
    plan = CPU.plan_attention(case.tables, case.first_block, starts, contexts, window, case.pool)
    return CPU.paged_attention(query, case.pool[:, case.layer], plan, 0.3, softcap)


def check(
    contexts: Sequence[int],
    queries: Sequence[int],
    *,
    heads: int = 4,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 2e-6,
    softcap: float | None = None,
    **shape: int,
) -> None:
    case = make_case(contexts, queries, window=window, dtype=dtype, **shape)
    starts = [0]
    for count in queries:
        starts.append(starts[-1] + count)
    dim = case.pool.shape[-1]
    # A slice of a wider tensor, as queries are of the product that makes queries and keys.
    query = torch.randn(starts[-1], heads + 3, dim, dtype=dtype)[:, :heads]
    out = attend(case, query, starts, window, softcap)
    assert out.shape == query.shape
    assert out.dtype == dtype
    for index, (start, end) in enumerate(itertools.pairwise(starts)):
        key, value = case.keys[index], case.values[index]
        expected = dense(query[start:end], key, value, window, 0.3, softcap)
        torch.testing.assert_close(out[start:end].double(), expected, atol=tolerance, rtol=0)


WINDOWS = [None, 1, 5, 8, 1000]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("contexts", "queries"),
    [
        ([1], [1]),
        ([9], [1]),
        ([7, 7, 7], [1, 1, 1]),
        ([1, 30, 4, 17, 5], [1, 1, 1, 1, 1]),
        ([6], [6]),
        ([23], [9]),
        ([40], [33]),
        ([5, 12, 30, 3, 16], [1, 12, 7, 3, 1]),
    ],
)
def test_ragged_batches(contexts: list[int], queries: list[int], window: int | None) -> None:
    check(contexts, queries, window=window)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 1), (4, 4), (6, 3)])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_heads_and_blocks(heads: int, kv_heads: int, block_size: int) -> None:
    check([20, 33, 9], [1, 8, 1], heads=heads, kv_heads=kv_heads, block_size=block_size, window=12)


def test_long_chunk_over_a_long_context() -> None:
    check([310], [300], window=64)
    check([310], [150])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_narrow_types(dtype: torch.dtype, tolerance: float) -> None:
    check([20, 33, 9], [1, 8, 1], dtype=dtype, tolerance=tolerance)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_softcapped_scores(window: int | None, softcap: float) -> None:
    check([5, 12, 30, 3, 16], [1, 12, 7, 3, 1], window=window, softcap=softcap)
    check([1, 30, 4, 17, 5], [1, 1, 1, 1, 1], window=window, softcap=softcap, kv_heads=1)
    bfloat16 = {"dtype": torch.bfloat16, "tolerance": 2e-2}
    check([20, 33, 9], [1, 8, 1], window=window, softcap=softcap, **bfloat16)


def test_empty_batch() -> None:
    case = make_case([], [])
    out = attend(case, torch.empty(0, 4, 16), [0], None)
    assert out.shape == (0, 4, 16)


def test_a_pool_whose_tokens_are_apart_is_refused() -> None:
    case = make_case([3], [1])
    transposed = case.pool.transpose(-1, -2)
    with pytest.raises(ValueError, match="contiguously"):
        CPU.plan_attention(case.tables, [0], [0, 1], [3], None, transposed)
