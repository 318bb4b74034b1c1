"""Directories that load, and errors that name what is wrong with those that do not."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.loader import LoadError, load_model
from engine.model_config import ModelConfig
from tests.support.models import tiny, tiny_gemma3, tiny_llama
from tests.support.paged import PagedDriver


def edit(file: Path, **settings) -> None:
    values = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def edit_weights(directory: Path, **tensors) -> None:
    file = directory / "model.safetensors"
    weights = load_file(file) | {k.replace("__", "."): v for k, v in tensors.items()}
    save_file({k: v for k, v in weights.items() if v is not None}, file)


def fails(path: Path, *parts: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_model(path, dtype=torch.float32)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_config_of_llama(tmp_path: Path) -> None:
    config = load_model(tiny_llama(tmp_path), dtype=torch.float32).config
    assert config.architecture == "llama"
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (3, 4, 2, 32)
    assert config.max_position == 512
    assert config.eos_token_ids == {1}
    assert config.bos_token_id == 2
    assert not config.tied
    assert config.sliding_window is None


def test_config_of_gemma3(tmp_path: Path) -> None:
    config = load_model(tiny_gemma3(tmp_path), dtype=torch.float32).config
    assert config.architecture == "gemma3"
    assert [config.window_of(layer) for layer in range(7)] == [24] * 5 + [None, 24]
    assert (config.rope.theta, config.local_rope.theta) == (1e6, 1e4)
    assert config.tied


def test_end_tokens_come_from_the_generation_config(tmp_path: Path) -> None:
    edit(tiny_llama(tmp_path) / "generation_config.json", eos_token_id=[1, 106])
    assert load_model(tmp_path, dtype=torch.float32).config.eos_token_ids == {1, 106}


def test_end_tokens_past_the_vocabulary_are_none(tmp_path: Path) -> None:
    edit(tiny_llama(tmp_path) / "generation_config.json", eos_token_id=[1, 384, 99999])
    assert load_model(tmp_path, dtype=torch.float32).config.eos_token_ids == {1}


def test_end_tokens_without_a_generation_config(tmp_path: Path) -> None:
    (tiny_llama(tmp_path) / "generation_config.json").unlink()
    edit(tmp_path / "config.json", eos_token_id=[5, 6])
    assert load_model(tmp_path, dtype=torch.float32).config.eos_token_ids == {5, 6}


def test_progress_ends_at_all_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_model(
        tiny_llama(tmp_path, shards=True),
        dtype=torch.bfloat16,
        progress=lambda done, total: seen.append((done, total)),
    )
    stored = sum(t.nbytes for f in tmp_path.glob("*.safetensors") for t in load_file(f).values())
    assert {total for _, total in seen} == {stored}
    done = [done for done, _ in seen]
    assert done == sorted(done)
    assert done[0] < stored == done[-1]


def test_digest_tells_weights_and_settings_apart(tmp_path: Path) -> None:
    def digest(path: Path) -> str:
        return load_model(path, dtype=torch.float32).digest

    first = digest(tiny_llama(tmp_path / "a"))
    assert digest(tiny_llama(tmp_path / "b")) == first
    assert digest(tiny_llama(tmp_path / "c", seed=1)) != first
    edit(tmp_path / "b" / "config.json", rms_norm_eps=1e-3)
    assert digest(tmp_path / "b") != first


def test_nothing_there(tmp_path: Path) -> None:
    fails(tmp_path / "absent", "no such file or directory")


def test_no_config(tmp_path: Path) -> None:
    fails(tmp_path, "config.json", "no such file")


def test_broken_config(tmp_path: Path) -> None:
    (tiny_llama(tmp_path) / "config.json").write_text("{")
    fails(tmp_path, "config.json", "JSON")


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, ["MambaForCausalLM"]),
        ({"model_type": "mamba", "architectures": "Mamba"}, ["architectures", "'Mamba'"]),
        ({"model_type": "mamba", "architectures": 5}, ["architectures", "5"]),
        ({"model_type": ...}, ["model_type", "missing"]),
        ({"hidden_size": ...}, ["hidden_size", "missing"]),
        ({"hidden_size": "64"}, ["hidden_size", "'64'"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"num_attention_heads": 2**70}, ["num_attention_heads", str(2**70)]),
        ({"intermediate_size": 2**70}, ["intermediate_size", str(2**70)]),
        ({"num_hidden_layers": 2**31 - 1}, ["num_hidden_layers", str(2**31 - 1)]),
        ({"num_hidden_layers": True}, ["num_hidden_layers", "True"]),
        ({"rms_norm_eps": -1.0}, ["rms_norm_eps", "-1.0"]),
        ({"head_dim": 31}, ["head_dim", "odd"]),
        ({"num_key_value_heads": 3}, ["4 heads", "3 KV heads"]),
        ({"hidden_act": "relu"}, ["hidden_act", "relu"]),
        ({"attention_bias": "yes"}, ["attention_bias", "yes"]),
        ({"bos_token_id": -2}, ["bos_token_id", "-2"]),
        ({"quantization_config": {"quant_method": "awq"}}, ["quantization_config", "awq"]),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}},
            ["rope_parameters.rope_type", "longrope"],
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}},
            ["rope_parameters.factor", "missing"],
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
    ],
)
def test_settings_that_do_not_work(tmp_path: Path, settings: dict, parts: list[str]) -> None:
    edit(tiny_llama(tmp_path) / "config.json", **settings)
    fails(tmp_path, "config.json", *parts)


@pytest.mark.parametrize("name", ["hidden_size", "intermediate_size", "vocab_size"])
def test_sizes_that_no_memory_holds_are_those_of_a_wrong_shape(tmp_path: Path, name: str) -> None:
    edit(tiny_llama(tmp_path) / "config.json", **{name: 2**31 - 2})
    fails(tmp_path, "has shape", str(2**31 - 2))


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"final_logit_softcapping": 30.0}, ["final_logit_softcapping", "30.0"]),
        ({"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping", "50.0"]),
        ({"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
        ({"hidden_activation": "gelu"}, ["hidden_activation", "'gelu'"]),
        ({"layer_types": ["full_attention"]}, ["1 layer_types for 7 layers"]),
        ({"layer_types": 3}, ["layer_types", "3"]),
        ({"layer_types": [["full_attention"]] * 7}, ["layer_types", "list of strings"]),
        ({"layer_types": ["chunked_attention"] * 7}, ["chunked_attention"]),
    ],
)
def test_gemma3_settings_that_do_not_work(tmp_path: Path, settings: dict, parts: list[str]) -> None:
    edit(tiny_gemma3(tmp_path) / "config.json", **settings)
    fails(tmp_path, "config.json", *parts)


@pytest.mark.parametrize(
    ("family", "settings", "parts"),
    [
        ("mixtral", {"num_experts_per_tok": 6}, ["6 experts per token are more than 5"]),
        ("qwen3_moe", {"mlp_only_layers": [-1]}, ["mlp_only_layers", "[-1]"]),
        ("qwen3_moe", {"decoder_sparse_step": 0}, ["decoder_sparse_step", "0"]),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": -1},
            ["max_window_layers"],
        ),
        ("qwen2", {"layer_types": "full_attention"}, ["layer_types", "not a list"]),
        ("mistral", {"sliding_window": 0}, ["sliding_window", "0"]),
        ("gemma2", {"attn_logit_softcapping": -1.0}, ["attn_logit_softcapping", "-1.0"]),
    ],
)
def test_family_settings_that_do_not_work(
    tmp_path: Path, family: str, settings: dict, parts: list[str]
) -> None:
    edit(tiny(family, tmp_path) / "config.json", **settings)
    fails(tmp_path, "config.json", *parts)


def config_of(directory: Path) -> ModelConfig:
    return load_model(directory, dtype=torch.float32).config


def test_a_window_that_is_absent_is_not_one_that_is_null(tmp_path: Path) -> None:
    edit(tiny("mistral", tmp_path) / "config.json", sliding_window=...)
    assert config_of(tmp_path).sliding_window == 4096
    edit(tmp_path / "config.json", sliding_window=None)
    assert config_of(tmp_path).layer_types == ("full_attention",) * 3


def test_caps_that_are_absent_are_not_null(tmp_path: Path) -> None:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    edit(tiny("gemma2", tmp_path) / "config.json", **dict.fromkeys(caps, ...))
    config = config_of(tmp_path)
    assert (config.attention_softcap, config.final_softcap) == (50.0, 30.0)
    edit(tmp_path / "config.json", **dict.fromkeys(caps))
    config = config_of(tmp_path)
    assert (config.attention_softcap, config.final_softcap) == (None, None)


def test_windows_that_are_not_used(tmp_path: Path) -> None:
    edit(tiny("qwen2", tmp_path) / "config.json", sliding_window=24, layer_types=...)
    assert config_of(tmp_path).layer_types == ("full_attention",) * 4


def test_which_layers_have_experts(tmp_path: Path) -> None:
    path = tiny("qwen3_moe", tmp_path, decoder_sparse_step=2, mlp_only_layers=[3])
    experts = config_of(path).experts
    assert experts is not None
    assert (experts.count, experts.per_token, experts.layers) == (6, 2, {1})


@pytest.mark.parametrize("kept", ["model.embed_tokens.weight", "lm_head.weight"])
def test_of_two_tied_tensors_the_file_may_hold_either(tmp_path: Path, kept: str) -> None:
    tiny_llama(tmp_path / "a", tied=True)
    tiny_llama(tmp_path / "b", tied=True)
    file = tmp_path / "b" / "model.safetensors"
    weights = load_file(file)
    table = weights.pop("model.embed_tokens.weight")
    save_file(weights | {kept: table}, file)
    expected, found = (PagedDriver(load_model(tmp_path / one, dtype=torch.float32).module)
                       for one in "ab")  # fmt: skip
    assert torch.equal(found.run([5, 6, 7], [3]), expected.run([5, 6, 7], [3]))


def test_an_untied_head_may_not_be_missing(tmp_path: Path) -> None:
    edit_weights(tiny_llama(tmp_path), lm_head__weight=None)
    fails(tmp_path, "lm_head.weight", "missing")


def test_no_weights(tmp_path: Path) -> None:
    (tiny_llama(tmp_path) / "model.safetensors").unlink()
    fails(tmp_path, "model.safetensors")


def test_missing_tensor(tmp_path: Path) -> None:
    edit_weights(tiny_llama(tmp_path), model__layers__1__mlp__up_proj__weight=None)
    fails(tmp_path, "model.layers.1.mlp.up_proj.weight", "missing")


def test_wrong_shape(tmp_path: Path) -> None:
    edit_weights(tiny_llama(tmp_path), model__norm__weight=torch.ones(65))
    fails(tmp_path, "model.norm.weight", "[65]", "[64]")


def test_wrong_type(tmp_path: Path) -> None:
    edit_weights(tiny_llama(tmp_path), model__norm__weight=torch.ones(64, dtype=torch.int32))
    fails(tmp_path, "model.norm.weight", "I32")


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.999])
def test_truncated_file(tmp_path: Path, kept: float) -> None:
    file = tiny_llama(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * kept)])
    fails(tmp_path, "model.safetensors", "truncated")


def test_missing_shard(tmp_path: Path) -> None:
    shard = sorted(tiny_llama(tmp_path, shards=True).glob("*.safetensors"))[1]
    shard.unlink()
    fails(tmp_path, shard.name, "no such file")


def test_index_that_promises_too_much(tmp_path: Path) -> None:
    index = tiny_llama(tmp_path, shards=True) / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    edit(index, weight_map=places | {"model.extra.weight": next(iter(places.values()))})
    fails(tmp_path, "model.extra.weight", "missing")


def test_index_without_a_map(tmp_path: Path) -> None:
    index = tiny_llama(tmp_path, shards=True) / "model.safetensors.index.json"
    index.write_text("{}")
    fails(tmp_path, "index.json", "weight_map")


def test_index_that_names_no_files(tmp_path: Path) -> None:
    index = tiny_llama(tmp_path, shards=True) / "model.safetensors.index.json"
    edit(index, weight_map={"model.norm.weight": 1})
    fails(tmp_path, index.name, "model.norm.weight", "1")
