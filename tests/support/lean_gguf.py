"""GGUF files without their vocabulary: readers in Python take half a minute for a large one."""

from pathlib import Path

import gguf
import numpy as np

from baton.gguf import GGUFHeader, TensorInfo, read_header


def without_vocabulary(source: Path, target: Path) -> Path:
    """Writes `source` without its tokenizer to `target`: the same tensors, byte for byte."""
    header = read_header(source)
    writer = gguf.GGUFWriter(target, header.metadata["general.architecture"])
    _add_metadata(writer, header)
    data = np.memmap(source, dtype=np.uint8, mode="r")
    for name, info in header.tensors.items():
        kind = gguf.GGMLQuantizationType(info.ggml_type)
        writer.add_tensor(name, _bytes_of(data, info, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_metadata(writer: gguf.GGUFWriter, header: GGUFHeader) -> None:
    for key, value in header.metadata.items():
        if key.startswith("tokenizer.") or key == "general.architecture":
            continue
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case list():
                writer.add_array(key, value)
            case str():
                writer.add_string(key, value)


def _bytes_of(data: np.ndarray, info: TensorInfo, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    shape = gguf.quant_shape_to_byte_shape(info.shape, kind)
    return data[info.offset : info.offset + int(np.prod(shape))].reshape(shape)
