import gguf
import numpy as np
import pytest

from baton.gguf import GGUFError, is_gguf, read_header


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("llama.rope.freq_base", 10000.5)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_string("general.name", "tiny \N{SNOWMAN}")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "\N{SNOWMAN}"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.5])
    writer.add_tensor("one", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("two", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_reads_metadata_of_every_kind(file):
    metadata = read_header(file).metadata
    assert metadata["llama.block_count"] == 3
    assert metadata["llama.rope.freq_base"] == 10000.5
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert metadata["general.name"] == "tiny \N{SNOWMAN}"
    assert metadata["tokenizer.ggml.tokens"] == ["a", "b", "\N{SNOWMAN}"]
    assert metadata["tokenizer.ggml.scores"] == [0.5, -1.5]


def test_tensor_places_hold_the_tensors(file):
    header = read_header(file)
    data = file.read_bytes()
    one, two = header.tensors["one"], header.tensors["two"]
    assert one.shape == (3, 4)
    assert two.shape == (5,)
    assert np.frombuffer(data, np.float32, 12, one.offset).tolist() == list(range(12))
    assert np.frombuffer(data, np.float16, 5, two.offset).tolist() == list(range(5))
    assert header.file_bytes == len(data)


def test_agrees_with_the_gguf_package(file):
    theirs = gguf.GGUFReader(file)
    ours = read_header(file)
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].offset == tensor.data_offset
        assert ours.tensors[tensor.name].ggml_type == tensor.tensor_type


@pytest.mark.parametrize("keep", [0, 3, 23, 24, 40, 100, 200])
def test_a_truncated_header_is_named(file, tmp_path, keep):
    short = tmp_path / "short.gguf"
    short.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(GGUFError, match=r"short\.gguf: .*truncated"):
        read_header(short)


def test_another_magic_or_version_is_refused(file, tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"NOPE" + file.read_bytes()[4:])
    with pytest.raises(GGUFError, match="not a GGUF file"):
        read_header(other)
    assert not is_gguf(other)
    assert is_gguf(file)
    other.write_bytes(b"GGUF\x09\0\0\0" + file.read_bytes()[8:])
    with pytest.raises(GGUFError, match="version 9"):
        read_header(other)


def test_absurd_counts_end_in_an_error_not_in_memory(tmp_path):
    path = tmp_path / "huge.gguf"
    path.write_bytes(
        b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
        + (1).to_bytes(8, "little") + b"k" + (9).to_bytes(4, "little")
        + (8).to_bytes(4, "little") + (1 << 60).to_bytes(8, "little")
    )  # fmt: skip
    with pytest.raises(GGUFError, match=r"k: .* entries"):
        read_header(path)
