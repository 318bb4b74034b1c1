"""GGUF files that load, and errors that name what is wrong with those that do not."""

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.loader import LoadError, load_model
from engine.model_config import RopeConfig
from engine.rope import inverse_frequencies
from tests.support.models import tiny_gemma3_gguf, tiny_gguf, tiny_llama_gguf
from tests.support.paged import PagedDriver


def fails(path: Path, *parts: str) -> None:
    with pytest.raises(LoadError) as caught:
        load_model(path, dtype=torch.float32)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def rewrite(
    file: Path,
    *,
    architecture: str | None = None,
    settings: dict | None = None,
    tensors: dict | None = None,
) -> Path:
    """A copy with settings (None drops one) and tensors (likewise) replaced."""
    reader = gguf.GGUFReader(file)
    family = reader.fields["general.architecture"].contents()
    target = file.with_name("rewritten.gguf")
    writer = gguf.GGUFWriter(target, architecture or family)
    values = {
        key: field.contents()
        for key, field in reader.fields.items()
        if key.startswith((f"{family}.", "tokenizer.ggml.eos", "tokenizer.ggml.bos"))
    } | (settings or {})
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    stored = {t.name: t.data for t in reader.tensors} | (tensors or {})
    for name, data in stored.items():
        if data is not None:
            writer.add_tensor(name, np.array(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_config_of_gemma3(tmp_path: Path) -> None:
    config = load_model(tiny_gemma3_gguf(tmp_path), dtype=torch.float32).config
    assert config.architecture == "gemma3"
    assert [config.window_of(layer) for layer in range(7)] == [24] * 5 + [None, 24]
    assert (config.rope.theta, config.local_rope.theta) == (1e6, 1e4)
    assert config.tied
    assert config.eos_token_ids == {1}
    assert config.bos_token_id == 2
    assert config.attention_scale == 32**-0.5


def test_the_largest_gemma3_scales_by_hidden_size_per_head(tmp_path: Path) -> None:
    # Only as many layers as the largest has tell it apart.
    file = tiny_gemma3_gguf(tmp_path, num_hidden_layers=62)
    assert load_model(file, dtype=torch.float32).config.attention_scale == (64 / 4) ** -0.5


def test_a_turn_end_token_is_an_end_token(tmp_path: Path) -> None:
    file = rewrite(tiny_llama_gguf(tmp_path), settings={"tokenizer.ggml.eot_token_id": 7})
    assert load_model(file, dtype=torch.float32).config.eos_token_ids == {1, 7}


def test_rope_factors_divide_frequencies(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    file = tiny_llama_gguf(tmp_path)
    plain = inverse_frequencies(load_model(file, dtype=torch.float32).config.rope, 32)
    config = load_model(
        rewrite(file, tensors={"rope_freqs.weight": factors}), dtype=torch.float32
    ).config
    divided = inverse_frequencies(config.rope, 32)
    torch.testing.assert_close(divided * torch.from_numpy(factors), plain)


def test_linear_rope(tmp_path: Path) -> None:
    settings = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    file = rewrite(tiny_llama_gguf(tmp_path), settings=settings)
    rope = load_model(file, dtype=torch.float32).config.rope
    assert (rope.kind, rope.factor) == ("linear", 4.0)


def test_yarn_rope(tmp_path: Path) -> None:
    settings = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 256,
    }
    file = rewrite(tiny_llama_gguf(tmp_path), settings=settings)
    config = load_model(file, dtype=torch.float32).config
    expected = RopeConfig(
        10_000.0,
        "yarn",
        factor=4.0,
        original_max_position=256,
        attention_factor=0.1 * math.log(4.0) + 1.0,
    )
    assert config.rope == expected
    assert config.max_position == 1024


def test_config_of_gemma2(tmp_path: Path) -> None:
    config = load_model(tiny_gguf("gemma2", tmp_path), dtype=torch.float32).config
    assert [config.window_of(layer) for layer in range(4)] == [24, None] * 2
    assert (config.attention_softcap, config.final_softcap) == (2.0, 4.0)
    assert config.attention_scale == 32**-0.5


def test_architecture_llama_is_mistral_with_a_window_and_mixtral_with_experts(
    tmp_path: Path,
) -> None:
    mistral = load_model(tiny_gguf("mistral", tmp_path), dtype=torch.float32).config
    assert (mistral.architecture, mistral.window_of(0)) == ("mistral", 24)
    mixtral = load_model(tiny_gguf("mixtral", tmp_path), dtype=torch.float32).config
    assert (mixtral.architecture, mixtral.window_of(0)) == ("mixtral", None)
    assert mixtral.experts is not None
    assert (mixtral.experts.count, mixtral.experts.per_token) == (5, 2)


def test_experts_one_by_one_as_older_files_have_them(tmp_path: Path) -> None:
    file = tiny_gguf("mixtral", tmp_path)
    changed: dict = {}
    for tensor in gguf.GGUFReader(file).tensors:
        if "_exps." in tensor.name:
            changed[tensor.name] = None
            for number, matrix in enumerate(tensor.data):
                changed[tensor.name.replace("_exps.", f".{number}.")] = matrix
    alone = rewrite(file, tensors=changed)
    expected, found = (PagedDriver(load_model(one, dtype=torch.float32).module)
                       for one in (file, alone))  # fmt: skip
    assert torch.equal(found.run([5, 6, 7], [3]), expected.run([5, 6, 7], [3]))


def test_too_few_experts(tmp_path: Path) -> None:
    stack = np.zeros((4, 96, 64), np.float32)
    file = rewrite(tiny_gguf("mixtral", tmp_path), tensors={"blk.1.ffn_up_exps.weight": stack})
    fails(file, "blk.1.ffn_up_exps.weight", "[4, 96, 64]", "expert 4")


def test_a_dense_architecture_with_experts(tmp_path: Path) -> None:
    file = rewrite(tiny_gguf("qwen2", tmp_path), settings={"qwen2.expert_count": 4})
    fails(file, "qwen2.expert_count", "no experts")


def test_digest_and_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    file = tiny_llama_gguf(tmp_path / "a")
    first = load_model(file, dtype=torch.float32, progress=lambda *at: seen.append(at)).digest
    assert seen[-1][0] == seen[-1][1] == sum(t.n_bytes for t in gguf.GGUFReader(file).tensors)
    same = load_model(tiny_llama_gguf(tmp_path / "b"), dtype=torch.bfloat16).digest
    other = load_model(tiny_llama_gguf(tmp_path / "c", seed=1), dtype=torch.float32).digest
    assert first == same != other


def test_not_a_model_file(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("these are notes")
    fails(file, "neither")


def test_unknown_architecture(tmp_path: Path) -> None:
    fails(rewrite(tiny_llama_gguf(tmp_path), architecture="mamba"), "'mamba'", "llama")


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"llama.block_count": None}, ["llama.block_count", "missing"]),
        ({"llama.expert_count": 8}, ["llama.expert_used_count", "missing"]),
        ({"llama.rope.scaling.type": "longrope"}, ["llama.rope.scaling.type", "longrope"]),
        ({"llama.rope.scaling.type": "yarn"}, ["llama.rope.scaling.factor", "missing"]),
        ({"llama.rope.dimension_count": 16}, ["llama.rope.dimension_count", "16"]),
        ({"llama.attention.head_count_kv": 3}, ["3 KV heads"]),
    ],
)
def test_settings_that_do_not_work(tmp_path: Path, settings: dict, parts: list[str]) -> None:
    fails(rewrite(tiny_llama_gguf(tmp_path), settings=settings), *parts)


def test_softcapping(tmp_path: Path) -> None:
    file = rewrite(tiny_gemma3_gguf(tmp_path), settings={"gemma3.final_logit_softcapping": 30.0})
    fails(file, "gemma3.final_logit_softcapping", "30.0")


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "token_embd.weight", "output_norm.weight"])
def test_missing_tensor(tmp_path: Path, name: str) -> None:
    fails(rewrite(tiny_llama_gguf(tmp_path), tensors={name: None}), name, "missing")


def test_wrong_shape(tmp_path: Path) -> None:
    wrong = {"blk.0.ffn_up.weight": np.zeros((96, 32), np.float32)}
    file = rewrite(tiny_llama_gguf(tmp_path), tensors=wrong)
    fails(file, "blk.0.ffn_up.weight", "[96, 32]", "[96, 64]")


def test_wrong_number_of_rope_factors(tmp_path: Path) -> None:
    wrong = {"rope_freqs.weight": np.ones(7, np.float32)}
    fails(rewrite(tiny_llama_gguf(tmp_path), tensors=wrong), "rope_freqs.weight", "7", "16")


def test_unsupported_tensor_type(tmp_path: Path) -> None:
    wrong = {"blk.0.ffn_up.weight": np.zeros((96, 64), np.int32)}
    fails(rewrite(tiny_llama_gguf(tmp_path), tensors=wrong), "blk.0.ffn_up.weight", "ggml type 26")


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_truncated_file(tmp_path: Path, kept: float) -> None:
    file = tiny_llama_gguf(tmp_path)
    file.write_bytes(file.read_bytes()[: max(8, int(file.stat().st_size * kept))])
    fails(file, "truncated")
