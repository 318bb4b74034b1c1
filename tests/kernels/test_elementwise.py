"""Norm, rotation and gated activation, each against its formula."""

import pytest
import torch

from kernels import kernels_for

CPU = kernels_for(torch.device("cpu"))
TYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("rows", [None, 3])
def test_rms_norm(dtype: torch.dtype, tolerance: float, tokens: int, rows: int | None) -> None:
    torch.manual_seed(0)
    if rows is None:
        x, weight = torch.randn(tokens, 40).to(dtype), torch.randn(40)
    else:
        x, weight = torch.randn(tokens, rows + 2, 40).to(dtype)[:, 1:-1], torch.randn(rows, 40)
    before = x.clone()
    out = CPU.rms_norm(x, weight, 1e-2)
    exact = x.double()
    expected = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-2).sqrt() * weight
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_rotary(dtype: torch.dtype, tolerance: float, tokens: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(tokens, 5, 16).to(dtype)[:, :3]
    angles = torch.rand(tokens, 1, 8) * 6
    cos, sin = angles.cos(), angles.sin()
    before = x.clone()
    out = CPU.rotary(x, torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
    turned = torch.complex(x[..., :8].double(), x[..., 8:].double()) * torch.polar(
        torch.ones_like(angles).double(), angles.double()
    )
    expected = torch.cat((turned.real, turned.imag), -1)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_activation(
    dtype: torch.dtype, tolerance: float, tokens: int, activation: str
) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(tokens, 24).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    if activation == "silu":
        expected = gate / (1 + (-gate).exp()) * up
    else:
        inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        expected = 0.5 * gate * (1 + inner.tanh()) * up
    out = CPU.gated_activation(gate_up, activation)  # type: ignore[arg-type]
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
