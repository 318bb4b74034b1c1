"""Rope scaling of every kind, in every family that has it, against Transformers."""

import json
from pathlib import Path

import pytest
import torch

from engine.loader import load_model
from tests.parity.conftest import MakePair
from tests.parity.test_logits import LINEAR_ROPE, LLAMA3_ROPE, assert_close, tokens_of
from tests.support.models import BUILDERS, CONTEXT_TOKENS, tiny
from tests.support.paged import PagedDriver

YARN = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
KINDS = {
    "default": {"rope_type": "default", "rope_theta": 25_000.0},
    "linear": LINEAR_ROPE,
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
    "llama3": LLAMA3_ROPE,
    "yarn": YARN,
    "yarn-betas": YARN | {"beta_fast": 8.0, "beta_slow": 0.5},
    "yarn-untruncated": YARN | {"truncate": False},
    "yarn-attention-factor": YARN | {"attention_factor": 1.7},
    "yarn-mscale": YARN | {"mscale": 0.9, "mscale_all_dim": 0.4},
    "yarn-one-mscale": YARN | {"mscale": 0.9},
}
ONE_ROPE = sorted(set(BUILDERS) - {"gemma3"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_kinds(make_pair: MakePair, family: str, kind: str) -> None:
    pair = make_pair(family, rope_parameters=dict(KINDS[kind]))
    tokens = tokens_of(150)
    assert_close(PagedDriver(pair.ours).run(tokens, [80, 1, 1, 33]), pair.expected(tokens))


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn-mscale"])
@pytest.mark.parametrize("family", sorted(set(ONE_ROPE) - {"llama", "qwen2"}))
def test_families(make_pair: MakePair, family: str, kind: str) -> None:
    pair = make_pair(family, rope_parameters=dict(KINDS[kind]))
    tokens = tokens_of(90)
    assert_close(PagedDriver(pair.ours).run(tokens, [64]), pair.expected(tokens))


def test_yarn_of_gemma3_full_layers(make_pair: MakePair) -> None:
    ropes = {"full_attention": YARN, "sliding_attention": KINDS["default"]}
    pair = make_pair("gemma3", rope_parameters=ropes)
    tokens = tokens_of(90)
    assert_close(PagedDriver(pair.ours).run(tokens, [64]), pair.expected(tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_as_older_versions_wrote_them(make_pair: MakePair, tmp_path: Path, kind: str) -> None:
    path = tiny("mistral", tmp_path)
    rope = dict(KINDS[kind])
    settings = json.loads((path / "config.json").read_text())
    settings.pop("rope_parameters")
    settings["rope_theta"] = rope.pop("rope_theta")
    settings["rope_scaling"] = {"type": rope.pop("rope_type")} | rope
    (path / "config.json").write_text(json.dumps(settings))
    ours = load_model(path, dtype=torch.float32).module
    tokens = tokens_of(90)
    expected = make_pair("mistral", rope_parameters=dict(KINDS[kind])).expected(tokens)
    assert_close(PagedDriver(ours).run(tokens, [64]), expected)


@pytest.mark.parametrize("chunks", [[1], [7], [40]])
def test_dynamic_past_the_original_context(make_pair: MakePair, chunks: list[int]) -> None:
    """However we cut the work, logits are those of Transformers decoding token by token."""
    pair = make_pair("llama", rope_parameters=dict(KINDS["dynamic"]), max_position_embeddings=32)
    assert pair.ours.config.max_position == 64
    tokens = tokens_of(60)
    cache, rows = None, []
    with torch.no_grad():
        for token in tokens:
            out = pair.theirs(torch.tensor([[token]]), cache=cache, use_cache=True)
            cache = out.cache
            rows.append(out.logits[0, -1])
    assert_close(PagedDriver(pair.ours).run(tokens, chunks), torch.stack(rows))


def test_yarn_reaches_its_factor_times_the_original_context(make_pair: MakePair) -> None:
    rope = YARN | {"factor": 4.0, "original_max_position_embeddings": CONTEXT_TOKENS}
    pair = make_pair("qwen2", rope_parameters=rope)
    assert pair.ours.config.max_position == 4 * CONTEXT_TOKENS
