"""Products with packed weights, against the plain formula."""

import psutil
import pytest
import torch

from kernels import kernels_for, linear

CPU = kernels_for(torch.device("cpu"))
TYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("shape", [(1, 5), (97, 33), (64, 48)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("packs", [True, False])
def test_products(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    tolerance: float,
    shape: tuple[int, int],
    bias: bool,
    packs: bool,
) -> None:
    if not packs:
        monkeypatch.setattr(linear, "_packs", lambda _: False)
    torch.manual_seed(0)
    weight = (torch.randn(shape) / shape[1] ** 0.5).to(dtype)
    addend = torch.randn(shape[0]).to(dtype) if bias else None
    multiply = CPU.pack_linear(weight, addend)
    for rows in (0, 1, 2, 16, 70):
        # Every second row of a wider tensor: rows need not be adjacent.
        x = torch.randn(2 * rows, shape[1] + 3).to(dtype)[::2, 3:]
        expected = x.double() @ weight.double().T
        if addend is not None:
            expected += addend.double()
        out = multiply(x)
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_does_not_grow_with_every_new_row_count(dtype: torch.dtype) -> None:
    """oneDNN keeps code for each row count that it meets, most of a MiB each."""
    multiply = CPU.pack_linear(torch.randn(640, 512).to(dtype), None)
    multiply(torch.randn(160, 512).to(dtype))
    before = psutil.Process().memory_info().rss
    for rows in range(1, 160):
        multiply(torch.randn(rows, 512).to(dtype))
    assert psutil.Process().memory_info().rss - before < 40 * 2**20
