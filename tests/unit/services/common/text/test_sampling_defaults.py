import json
import logging

import pytest

from services.common.text import SamplingDefaults, TextModel
from services.common.text.sampling_defaults import of_directory, of_gguf
from tests.support.tokenizers import byte_level, byte_level_metadata, write_gguf

WORDS = 1000


def read(path, config) -> SamplingDefaults:
    (path / "generation_config.json").write_text(
        config if isinstance(config, str) else json.dumps(config)
    )
    return of_directory(path, WORDS)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": [1, 2], "bos_token_id": 0}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
            | {"repetition_penalty": 1.1},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
            | {"repetition_penalty": 1.1},
        ),
        ({"temperature": 1, "top_k": 0, "top_p": 1}, {"temperature": 1.0, "top_k": 0, "top_p": 1}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
        ({"do_sample": False, "top_p": 0.9}, {"temperature": 0.0, "top_p": 0.9}),
        ({"temperature": None, "top_k": None}, {}),
        ({"top_k": 50.0}, {"top_k": 50}),
    ],
)
def test_what_a_directory_recommends(config, expected, tmp_path, caplog):
    assert read(tmp_path, config) == SamplingDefaults(**expected)
    assert not caplog.records


def test_a_directory_without_the_file_recommends_nothing(tmp_path):
    assert of_directory(tmp_path, WORDS) == SamplingDefaults()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 100.5),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", WORDS + 1),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.01),
        ("min_p", [0.1]),
        ("repetition_penalty", 0),
        ("repetition_penalty", 10.5),
    ],
)
def test_a_bad_value_is_left_out_and_named_in_the_log(field, value, tmp_path, caplog):
    other = {"min_p": 0.5} if field != "min_p" else {"top_p": 0.5}
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path, other | {field: value}) == SamplingDefaults(**other)
    [record] = caplog.records
    assert f"generation_config.json: {field} is ignored: " in record.getMessage()


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_file_that_cannot_be_read_is_ignored_with_a_warning(content, tmp_path, caplog):
    path = tmp_path / "generation_config.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert of_directory(tmp_path, WORDS) == SamplingDefaults()
    [record] = caplog.records
    assert f"{path} is ignored" in record.getMessage()


def test_what_a_gguf_file_recommends(tmp_path, caplog):
    metadata = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 64,
        "general.sampling.top_p": 0.95,
        "general.sampling.min_p": 0.25,
        "general.sampling.penalty_repeat": -1.0,
    }
    found = of_gguf(metadata, tmp_path / "m.gguf", WORDS)
    assert found == SamplingDefaults(temperature=0.5, top_k=64, top_p=0.95, min_p=0.25)
    assert "m.gguf: general.sampling.penalty_repeat is ignored" in caplog.text


def test_a_model_has_its_own(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    assert TextModel.load(tmp_path).default_sampling == SamplingDefaults()
    read(tmp_path, {"temperature": 0.25, "top_k": 10_000})
    assert TextModel.load(tmp_path).default_sampling == SamplingDefaults(temperature=0.25)
    metadata = byte_level_metadata(byte_level(), "gpt-2") | {"general.sampling.top_k": 20}
    file = write_gguf(tmp_path / "m.gguf", metadata)
    assert TextModel.load(file).default_sampling == SamplingDefaults(top_k=20)
