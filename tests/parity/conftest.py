"""Models by Transformers and by us, of the same weights."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.loader import load_model
from engine.models import CausalLM
from tests.support.models import BUILDERS, save_model


@dataclass
class Pair:
    """One model twice."""

    theirs: PreTrainedModel
    ours: CausalLM
    path: Path

    def expected(self, tokens: list[int]) -> Tensor:
        """Transformers' logits at every position."""
        with torch.no_grad():
            return self.theirs(torch.tensor([tokens])).logits[0].float()


MakePair = Callable[..., Pair]


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> MakePair:
    """Builds a pair of a family, with settings of the test's choice."""

    def make(family: str, *, dtype: torch.dtype = torch.float32, **settings) -> Pair:
        theirs = BUILDERS[family](**settings)
        path = save_model(theirs, tmp_path_factory.mktemp(family))
        return Pair(theirs.to(dtype), load_model(path, dtype=dtype).module, path)

    return make


@pytest.fixture(scope="session", params=BUILDERS)
def pair(request: pytest.FixtureRequest, make_pair: MakePair) -> Pair:
    """A pair of each family in float32."""
    return make_pair(request.param)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
