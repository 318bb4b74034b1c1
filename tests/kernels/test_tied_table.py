"""One copy of a table serves products and rows."""

import pytest
import torch

from kernels import kernels_for, linear, tied_table

CPU = kernels_for(torch.device("cpu"))
TYPES = [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 2e-3)]
SHAPES = [(1, 1), (5, 33), (64, 48), (97, 64), (384, 64), (1024, 100), (1025, 64), (3001, 260)]


def pack(table: torch.Tensor, step: int = 700):
    pieces = ((at, table[at : at + step].double()) for at in range(0, len(table), step))
    return CPU.pack_tied_table(tuple(table.shape), table.dtype, table.device, pieces)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("packs", [True, False])
def test_products_and_rows(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float,
    shape: tuple[int, int], packs: bool,
) -> None:  # fmt: skip
    if not packs:
        monkeypatch.setattr(linear, "_packs", lambda _: False)
    torch.manual_seed(0)
    table = torch.randn(shape).to(dtype)
    expected = table.clone()
    product, rows = pack(table)
    del table
    for count in (0, 1, 40):
        ids = torch.randint(0, shape[0], (count,))
        found = rows(ids)
        assert torch.equal(found, expected[ids])
        found.zero_()  # fresh memory: the table is as it was
        assert torch.equal(rows(ids), expected[ids])
    assert torch.equal(rows(torch.arange(shape[0])), expected)
    x = torch.randn(3, shape[1]).to(dtype) / shape[1] ** 0.5
    torch.testing.assert_close(
        product(x).double(), x.double() @ expected.double().T, atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_one_copy_is_kept(dtype: torch.dtype) -> None:
    """Rows come out of the packed memory; what the process takes is the loader's test."""
    if linear.pack_weight(torch.zeros(64, 64, dtype=dtype)) is None:
        pytest.skip(f"oneDNN packs no {dtype} on this CPU: there is one plain copy")
    _, rows = pack(torch.randn(6_000, 512).to(dtype))
    assert isinstance(rows, tied_table._PackedRows)
    kept = rows._values
    packed = torch.ops.mkldnn.data_ptr(rows._packed)
    assert kept.data_ptr() == packed
    assert kept.nbytes == torch.ops.mkldnn._nbytes(rows._packed)


@pytest.mark.parametrize("fault", ["not by blocks", "too little room", "products disagree"])
def test_an_order_that_is_not_as_expected_keeps_the_table(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    table = torch.randn(3000, 64)
    if fault == "not by blocks":
        monkeypatch.setattr(tied_table, "_packed_order", lambda _: None)
    elif fault == "too little room":
        monkeypatch.setattr(tied_table._Order, "span", lambda self, rows: 1 << 40)
    else:
        monkeypatch.setattr(tied_table, "_agree", lambda *_: False)
    product, rows = pack(table)
    assert not isinstance(rows, tied_table._PackedRows)
    assert torch.equal(rows(torch.arange(3000)), table)
    x = torch.randn(2, 64)
    torch.testing.assert_close(product(x), x @ table.T, atol=1e-4, rtol=1e-4)


def test_products_of_another_table_disagree() -> None:
    table = torch.randn(3000, 64)
    product, _ = pack(table)
    _, rows = pack(table.flip(0))
    assert not tied_table._agree(product, rows, (3000, 64), torch.float32)
