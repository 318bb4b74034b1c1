"""Loading takes little more memory than the weights it leaves, whatever they are read from."""

import json
import math
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.support.models import tiny_llama

HIDDEN, INNER, LAYERS, VOCAB, HEADS, KV_HEADS = 1024, 2816, 9, 20_000, 16, 4
BOUND = 1.15


def shapes(tied: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Llama of some 120 million weights."""
    key = HIDDEN // HEADS * KV_HEADS
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    if not tied:
        found["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (key, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (key, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{at}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, INNER),
        }
    return found


def write_directory(directory: Path, stored: str, item_bytes: int, tied: bool) -> Path:
    """A checkpoint of zeros, written as a hole, so that it takes no time and no disk."""
    header, at = {}, 0
    for name, shape in shapes(tied).items():
        end = at + math.prod(shape) * item_bytes
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    directory.mkdir()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    settings = {
        "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 2048,
        "tie_word_embeddings": tied,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(settings))
    return directory


def write_gguf(file: Path) -> Path:
    """The same, tied, in Q8_0."""
    from engine.loader.gguf_names import stored_name

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, shape in shapes(tied=True).items():
        stored, _ = stored_name("llama", name)
        if len(shape) == 1:
            writer.add_tensor(stored, np.ones(shape, np.float32))
        else:
            data = np.zeros((shape[0], shape[1] // 32 * 34), np.uint8)
            writer.add_tensor(stored, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def check(tmp_path: Path, model: Path, dtype: str, tied: bool) -> None:
    weights = sum(map(math.prod, shapes(tied).values())) * (4 if dtype == "float32" else 2)
    warm_up = tiny_llama(tmp_path / "warm-up")
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.load_peak", str(warm_up), str(model), dtype],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    peak, rest, layers = map(int, run.stdout.split())
    assert layers == LAYERS
    assert rest > 0.97 * weights
    assert rest <= peak < BOUND * weights, f"peak {peak / weights:.3f}, rest {rest / weights:.3f}"


@pytest.mark.parametrize(
    ("stored", "item_bytes", "dtype", "tied"),
    [("BF16", 2, "bfloat16", True), ("F32", 4, "bfloat16", False), ("F16", 2, "float32", True)],
)
def test_safetensors(tmp_path: Path, stored: str, item_bytes: int, dtype: str, tied: bool) -> None:
    check(tmp_path, write_directory(tmp_path / "model", stored, item_bytes, tied), dtype, tied)


def test_float8(tmp_path: Path) -> None:
    check(tmp_path, write_directory(tmp_path / "model", "F8_E4M3", 1, True), "bfloat16", True)


def test_gguf(tmp_path: Path) -> None:
    check(tmp_path, write_gguf(tmp_path / "model.gguf"), "bfloat16", tied=True)
