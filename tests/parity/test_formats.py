"""The same weights give the same logits from every file format."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.loader import load_model
from tests.parity.test_logits import assert_close, tokens_of
from tests.support.models import BUILDERS, SLIDING_WINDOW, tiny, tiny_gguf
from tests.support.paged import PagedDriver

AS_TRANSFORMERS = ["llama", "gemma2", "gemma3", "qwen2", "qwen3", "qwen3_moe"]
"""Whose GGUF form Transformers reads as what it is."""
UNREAD = {
    "gemma2": {
        "query_pre_attn_scalar": 32, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 4.0, "attn_implementation": "eager",
        "sliding_window": SLIDING_WINDOW, "head_dim": 32,
    },
    "gemma3": {"query_pre_attn_scalar": 32},
    "qwen3": {"head_dim": 32},
    "qwen3_moe": {"head_dim": 32, "moe_intermediate_size": 32},
}  # fmt: skip
"""What Transformers takes from its defaults whatever the file says."""


def logits_of(path: Path, tokens: list[int]) -> torch.Tensor:
    model = load_model(path, dtype=torch.float32).module
    return PagedDriver(model).run(tokens, [len(tokens)])


@pytest.mark.parametrize("family", BUILDERS)
@pytest.mark.parametrize("tied", [False, True])
def test_safetensors_shards_and_gguf_agree(tmp_path: Path, family: str, tied: bool) -> None:
    tokens = tokens_of(60)
    single = logits_of(tiny(family, tmp_path / "single", tied=tied), tokens)
    sharded = tiny(family, tmp_path / "sharded", tied=tied, shards=True)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert torch.equal(logits_of(sharded, tokens), single)
    from_gguf = logits_of(tiny_gguf(family, tmp_path / "gguf", tied=tied), tokens)
    torch.testing.assert_close(from_gguf, single, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", AS_TRANSFORMERS)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_gguf_as_transformers_reads_it(tmp_path: Path, family: str, kind: str) -> None:
    file = tiny_gguf(family, tmp_path, kind=kind)
    tokens = tokens_of(60)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32, **UNREAD.get(family, {})
    )
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor([tokens])).logits[0]
    assert_close(logits_of(file, tokens), expected)


OLD_ROPE = {
    "llama": {"rope_theta": 25_000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "gemma3": {
        "rope_theta": 500_000.0, "rope_local_base_freq": 20_000.0, "sliding_window_pattern": 3,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
}  # fmt: skip


@pytest.mark.parametrize("family", OLD_ROPE)
def test_settings_as_older_versions_wrote_them(tmp_path: Path, family: str) -> None:
    path = tiny(family, tmp_path)
    settings = json.loads((path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types"):
        settings.pop(key, None)
    (path / "config.json").write_text(json.dumps(settings | OLD_ROPE[family]))
    tokens = tokens_of(60)
    theirs = BUILDERS[family](**OLD_ROPE[family])
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    assert_close(logits_of(path, tokens), expected)
