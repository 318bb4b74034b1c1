"""What of a vocabulary can't be read is named; the rest is compared where files are written."""

import json
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, decoders

from services.common.text import TextModelError, Vocabulary
from tests.support.tokenizers import byte_level, byte_level_metadata, write_gguf


def test_bytes_of_parts_of_a_code_point(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    vocabulary = Vocabulary.load(tmp_path)
    assert {bytes([byte]) for byte in range(256)} <= set(vocabulary.token_bytes)
    assert vocabulary.special == {0: "<|begin|>", 1: "<|end|>"}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("[", "tokenizer.json: is no tokenizer"),
        ("[]", "tokenizer.json: is no tokenizer"),
        ("{}", "tokenizer.json: is no tokenizer"),
        ('{"model": {"vocab": 5}}', "tokenizer.json: is no tokenizer"),
        ('{"model": {"vocab": {}}, "added_tokens": [{}]}', "tokenizer.json: is no tokenizer"),
    ],
)
def test_files_that_are_no_tokenizers_are_named(state, message, tmp_path):
    (tmp_path / "tokenizer.json").write_text(state)
    with pytest.raises(TextModelError, match=message):
        Vocabulary.load(tmp_path)


def test_a_decoder_of_another_kind_is_refused(tmp_path):
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TextModelError, match=r"tokenizer.json: its decoder is not supported"):
        Vocabulary.load(tmp_path)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(TextModelError, match=r"tokenizer\.model: "):
        Vocabulary.load(tmp_path)
    with pytest.raises(TextModelError, match=r"nothing\.gguf"):
        Vocabulary.load(tmp_path / "nothing.gguf")


def test_a_gguf_file_without_tokens_is_named(tmp_path):
    metadata = byte_level_metadata(byte_level(), "gpt-2")
    del metadata["tokenizer.ggml.tokens"]
    path = write_gguf(tmp_path / "m.gguf", metadata)
    with pytest.raises(TextModelError, match=r"m\.gguf: has no tokenizer\.ggml\.tokens"):
        Vocabulary.load(path)


def test_no_template_engine_is_loaded(tmp_path):
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}})
    )
    code = (
        "import pathlib, sys; from services.common.text import Vocabulary\n"
        f"Vocabulary.load(pathlib.Path({str(tmp_path)!r}))\n"
        "assert 'jinja2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
