"""Eight-bit float checkpoints read as the numbers that they stand for."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.loader import LoadError, load_model, safetensors_file
from tests.support.models import tiny
from tests.support.paged import PagedDriver

TOKENS = list(range(4, 64))
BLOCK = [16, 24]


def quantized(weight: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn values and what multiplies them."""
    rows, columns = weight.shape
    if scheme == "block":
        heights = torch.arange(rows) // BLOCK[0]
        widths = torch.arange(columns) // BLOCK[1]
        scale = torch.zeros(int(heights[-1]) + 1, int(widths[-1]) + 1)
        for y in range(scale.shape[0]):
            for x in range(scale.shape[1]):
                scale[y, x] = weight[heights == y][:, widths == x].abs().max() / 448
        spread = scale[heights][:, widths]
    elif scheme in ("row", "column vector"):
        spread = scale = weight.abs().amax(dim=1, keepdim=True) / 448
        scale = scale[:, 0] if scheme == "row" else scale
    else:
        spread = scale = weight.abs().max() / 448
        scale = scale.reshape(1) if scheme == "one in a list" else scale
    return (weight / spread).to(torch.float8_e4m3fn), scale


def spread_out(scale: Tensor, shape: torch.Size) -> Tensor:
    """A scale for each number."""
    if scale.ndim == 2 and scale.shape[1] > 1:
        tall = scale.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
        return tall[: shape[0], : shape[1]]
    return scale.view(-1, 1).expand(shape) if scale.numel() > 1 else scale.view(1, 1).expand(shape)


def checkpoints(
    directory: Path, scheme: str, suffix: str, method: dict | None
) -> tuple[Path, Path]:
    """A quantized checkpoint, and one of the numbers that it stands for."""
    sealed, plain = tiny("qwen3", directory / "sealed"), tiny("qwen3", directory / "plain")
    weights = load_file(sealed / "model.safetensors")
    exact = dict(weights)
    for name, weight in list(weights.items()):
        if "_proj" in name:
            weights[name], scale = quantized(weight, scheme)
            weights[name + suffix] = scale
            exact[name] = weights[name].float() * spread_out(scale, weight.shape)
    save_file(weights, sealed / "model.safetensors")
    save_file(exact, plain / "model.safetensors")
    if method is not None:
        settings = json.loads((sealed / "config.json").read_text())
        settings["quantization_config"] = method
        (sealed / "config.json").write_text(json.dumps(settings))
    return sealed, plain


def logits(path: Path) -> Tensor:
    return PagedDriver(load_model(path, dtype=torch.float32).module).run(TOKENS, [60])


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


@pytest.mark.parametrize(
    ("scheme", "suffix", "method"),
    [
        ("block", "_scale_inv", FP8 | {"weight_block_size": BLOCK}),
        ("tensor", "_scale", FP8),
        ("tensor", "_scale_inv", None),
        ("one in a list", "_scale", {"quant_method": "modelopt", "quant_algo": "FP8"}),
        ("row", "_scale", {"quant_method": "fbgemm_fp8"}),
        (
            "column vector", "_scale",
            {"quant_method": "compressed-tensors", "format": "float-quantized"},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("piece_bytes", [1, 500, 2 << 20])
def test_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, suffix: str,
    method: dict | None, piece_bytes: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(safetensors_file, "PIECE_BYTES", piece_bytes)
    sealed, plain = checkpoints(tmp_path, scheme, suffix, method)
    torch.testing.assert_close(logits(sealed), logits(plain), atol=1e-5, rtol=0)


def test_without_scales_values_are_taken_as_they_are(tmp_path: Path) -> None:
    path, plain = tiny("llama", tmp_path / "a"), tiny("llama", tmp_path / "b")
    weights = load_file(path / "model.safetensors")
    narrow = {k: v.to(torch.float8_e4m3fn) if "_proj" in k else v for k, v in weights.items()}
    save_file(narrow, path / "model.safetensors")
    save_file({k: v.float() for k, v in narrow.items()}, plain / "model.safetensors")
    assert torch.equal(logits(path), logits(plain))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_types(tmp_path: Path, dtype: torch.dtype) -> None:
    path, plain = tiny("llama", tmp_path / "a"), tiny("llama", tmp_path / "b")
    weights = {k: v.to(dtype) for k, v in load_file(path / "model.safetensors").items()}
    save_file(weights, path / "model.safetensors")
    save_file({k: v.float() for k, v in weights.items()}, plain / "model.safetensors")
    assert torch.equal(logits(path), logits(plain))


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "pack-quantized"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size"),
    ],
)
def test_other_quantizations_are_refused_by_name(tmp_path: Path, method: dict, part: str) -> None:
    sealed, _ = checkpoints(tmp_path, "tensor", "_scale", method)
    with pytest.raises(LoadError, match=part):
        load_model(sealed, dtype=torch.float32)


def test_scales_that_do_not_fit(tmp_path: Path) -> None:
    method = FP8 | {"weight_block_size": [128, 128]}
    sealed, _ = checkpoints(tmp_path, "block", "_scale_inv", method)
    with pytest.raises(LoadError, match=r"q_proj\.weight_scale_inv has shape"):
        load_model(sealed, dtype=torch.float32)


def test_a_scale_that_is_missing(tmp_path: Path) -> None:
    """Without `quantization_config` it would be no quantized checkpoint, only a narrow one."""
    sealed, _ = checkpoints(tmp_path, "tensor", "_scale", FP8)
    weights = load_file(sealed / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight_scale"]
    save_file(weights, sealed / "model.safetensors")
    with pytest.raises(LoadError, match=r"layers\.1\.self_attn\.k_proj\.weight_scale are missing"):
        load_model(sealed, dtype=torch.float32)
