"""Each token's experts, weighted and summed, against the formula."""

import pytest
import torch
from torch import Tensor

from kernels import kernels_for

CPU = kernels_for(torch.device("cpu"))
TYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]


class Expert:
    """A matrix that counts the rows it is given."""

    def __init__(self, hidden: int, dtype: torch.dtype) -> None:
        self.weight = (torch.randn(hidden, hidden) / hidden**0.5).to(dtype)
        self.calls: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        return x @ self.weight


def chosen_of(tokens: int, per_token: int, experts: int) -> Tensor:
    return torch.rand(tokens, experts).argsort(dim=-1)[:, :per_token]


@pytest.mark.parametrize(("dtype", "tolerance"), TYPES)
@pytest.mark.parametrize("tokens", [0, 1, 2, 33])
@pytest.mark.parametrize("per_token", [1, 3, 7])
def test_mixture(dtype: torch.dtype, tolerance: float, tokens: int, per_token: int) -> None:
    torch.manual_seed(0)
    experts = [Expert(24, dtype) for _ in range(7)]
    x = torch.randn(tokens, 24).to(dtype)
    chosen, shares = chosen_of(tokens, per_token, 7), torch.rand(tokens, per_token)
    before = x.clone()
    out = CPU.mix_experts(x, chosen, shares, experts)
    expected = torch.zeros(tokens, 24, dtype=torch.float64)
    for token in range(tokens):
        for place in range(per_token):
            weight = experts[chosen[token, place]].weight.double()
            expected[token] += shares[token, place].double() * (x[token].double() @ weight)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance * per_token, rtol=tolerance)
    assert torch.equal(x, before)
    assert sum(sum(expert.calls) for expert in experts) == tokens * per_token
    assert all(count for expert in experts for count in expert.calls)


def test_a_token_gets_the_same_whatever_is_beside_it() -> None:
    torch.manual_seed(0)
    experts = [torch.nn.Identity() for _ in range(5)]
    x, chosen, shares = torch.randn(20, 8), chosen_of(20, 3, 5), torch.rand(20, 3)
    together = CPU.mix_experts(x, chosen, shares, experts)
    for token in range(20):
        row = slice(token, token + 1)
        alone = CPU.mix_experts(x[row], chosen[row], shares[row], experts)
        assert torch.equal(alone, together[row])
