"""Each token lands in its slot, and nothing else changes."""

import pytest
import torch

from kernels import kernels_for

CPU = kernels_for(torch.device("cpu"))


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_land_in_their_slots(tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    pool = torch.zeros(6, 3, 2, 4, 2, 8, dtype=dtype)
    slots = torch.randperm(6 * 4)[:tokens]
    blocks, offsets = slots // 4, slots % 4
    # Strided, as they are when queries, keys and values come from one product.
    product = torch.randn(tokens, 6, 8, dtype=dtype)
    key, value = product[:, 2:4], product[:, 4:]
    CPU.write_kv(pool[:, 1], key, value, blocks, offsets)
    expected = torch.zeros_like(pool)
    for token in range(tokens):
        expected[blocks[token], 1, 0, offsets[token]] = key[token]
        expected[blocks[token], 1, 1, offsets[token]] = value[token]
    assert torch.equal(pool, expected)
