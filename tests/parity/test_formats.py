"""The same weights give the same logits from every file format."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.loader import load_model
from tests.parity.test_logits import assert_close, tokens_of
from tests.support.models import (
    gemma3_model,
    llama_model,
    tiny_gemma3,
    tiny_gemma3_gguf,
    tiny_llama,
    tiny_llama_gguf,
)
from tests.support.paged import PagedDriver

FAMILIES = {
    "llama": (llama_model, tiny_llama, tiny_llama_gguf),
    "gemma3": (gemma3_model, tiny_gemma3, tiny_gemma3_gguf),
}


def logits_of(path: Path, tokens: list[int]) -> torch.Tensor:
    model = load_model(path, dtype=torch.float32).module
    return PagedDriver(model).run(tokens, [len(tokens)])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_safetensors_shards_and_gguf_agree(tmp_path: Path, family: str, tied: bool) -> None:
    _, save, save_gguf = FAMILIES[family]
    tokens = tokens_of(60)
    single = logits_of(save(tmp_path / "single", tied=tied), tokens)
    sharded = save(tmp_path / "sharded", tied=tied, shards=True)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert torch.equal(logits_of(sharded, tokens), single)
    from_gguf = logits_of(save_gguf(tmp_path / "gguf", tied=tied), tokens)
    torch.testing.assert_close(from_gguf, single, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_gguf_as_transformers_reads_it(tmp_path: Path, family: str, kind: str) -> None:
    file = FAMILIES[family][2](tmp_path, kind=kind)
    tokens = tokens_of(60)
    # Transformers takes Gemma 3's scale for that of heads of 256, whatever the file says.
    settings = {"query_pre_attn_scalar": 32} if family == "gemma3" else {}
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32, **settings
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


@pytest.mark.parametrize("family", FAMILIES)
def test_settings_as_older_versions_wrote_them(tmp_path: Path, family: str) -> None:
    build, save, _ = FAMILIES[family]
    path = save(tmp_path)
    settings = json.loads((path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types"):
        settings.pop(key, None)
    (path / "config.json").write_text(json.dumps(settings | OLD_ROPE[family]))
    tokens = tokens_of(60)
    theirs = build(**OLD_ROPE[family])
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0]
    assert_close(logits_of(path, tokens), expected)
