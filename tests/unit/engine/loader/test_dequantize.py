"""Tensors of every ggml type read as the gguf package's own numbers."""

import zlib
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.loader import gguf_file
from engine.loader.gguf_file import GGUFCheckpoint, dequantizable
from tests.support.models import tiny_llama_gguf

Kind = gguf.GGMLQuantizationType
ROWS, VALUES = 6, 512
NAME = "model.layers.0.mlp.up_proj.weight"


def stored(kind: Kind) -> np.ndarray:
    """Quantized random rows, or plausible random bytes where gguf cannot quantize."""
    random = np.random.default_rng(zlib.crc32(kind.name.encode()))
    values = random.standard_normal((ROWS, VALUES), dtype=np.float32)
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        size = (ROWS, VALUES // block * block_bytes)
        # Below 0x60, so that no half-precision scale within is infinite or NaN.
        return random.integers(0, 0x60, size, dtype=np.uint8)


def write(file: Path, kind: Kind, data: np.ndarray) -> None:
    """A file of which only one tensor matters."""
    source = tiny_llama_gguf(file.parent / "source")
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(file, "llama")
    for key, field in reader.fields.items():
        value = field.contents()
        if key.startswith("llama.") and not isinstance(value, list):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    writer.add_tensor("token_embd.weight", np.zeros((384, 64), np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_types_are_those_of_the_package() -> None:
    assert {Kind(kind).name for kind in dequantizable()} >= {
        "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
        "Q5_K", "Q6_K", "IQ4_NL", "MXFP4",
    }  # fmt: skip


@pytest.mark.parametrize("kind", [Kind(kind) for kind in sorted(dequantizable())], ids=str)
@pytest.mark.parametrize("chunk_values", [1, 1100, 1 << 20])
def test_every_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, chunk_values: int
) -> None:
    monkeypatch.setattr(gguf_file, "_CHUNK_VALUES", chunk_values)
    data = stored(kind)
    file = tmp_path / "model.gguf"
    write(file, kind, data)
    checkpoint = GGUFCheckpoint(file)
    try:
        assert checkpoint.shape(NAME) == (ROWS, VALUES)
        assert checkpoint.stored_bytes(NAME) == data.nbytes
        out = torch.empty(ROWS, VALUES)
        checkpoint.read(NAME, out)
    finally:
        checkpoint.close()
    expected = gguf.quants.dequantize(data, kind)
    assert np.isfinite(expected).all()
    assert np.abs(expected).max() > 0
    assert np.array_equal(out.numpy(), expected)


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    from engine.loader import LoadError

    file = tmp_path / "model.gguf"
    write(file, Kind.Q4_K, stored(Kind.Q4_K))
    raw = file.read_bytes()
    # The row length is the first dimension that follows the tensor's name.
    at = raw.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4
    assert int.from_bytes(raw[at : at + 8], "little") == VALUES
    file.write_bytes(raw[:at] + (VALUES - 8).to_bytes(8, "little") + raw[at + 8 :])
    with pytest.raises(LoadError, match=r"blk\.0\.ffn_up\.weight.*multiples of 256"):
        GGUFCheckpoint(file)
