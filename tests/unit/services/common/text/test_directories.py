"""Hugging Face directories: the same ids and the same text as transformers'."""

import json
from functools import cache

import pytest
from hypothesis import given
from tokenizers import Tokenizer, decoders, normalizers

from services.common.text import TextModel, TextModelError, Vocabulary
from tests.support.text_parity import (
    NAMES,
    TEXTS,
    check,
    check_bytes,
    check_vocabulary,
    transformers_tokenizer,
)
from tests.support.tokenizers import (
    GPT2,
    LLAMA3,
    PLAIN_ADDED,
    QWEN2,
    SPACE,
    SPECIAL,
    byte_fallback,
    byte_level,
    unigram,
)

BYTE_NAMES = {
    "bos_token": SPECIAL[0],
    "eos_token": {"__type": "AddedToken", "content": SPECIAL[1], "special": True},
}


def prepending() -> Tokenizer:
    """As Llama 2's files have it: the space comes from the normalizer."""
    tokenizer = Tokenizer.from_str(byte_fallback().to_str())
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    return tokenizer


def gemma_like() -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_fallback("never").to_str())
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    return tokenizer


def llama_decoded(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


KINDS = {
    "gpt2": lambda: byte_level(GPT2),
    "llama3": lambda: byte_level(LLAMA3, ignore_merges=True),
    "qwen2": lambda: byte_level(QWEN2, composed=True),
    "bpe, space first": byte_fallback,
    "bpe, space always": lambda: byte_fallback("always"),
    "bpe, no space": lambda: byte_fallback("never"),
    "llama2": prepending,
    "gemma": gemma_like,
    "unigram": unigram,
    "unigram, space first": lambda: unigram(prepend="first"),
    "unigram, no space": lambda: unigram(prepend="never"),
    "unigram, bytes": lambda: unigram(byte_fallback=True),
    "unigram, bytes, llama's decoder": lambda: llama_decoded(unigram(byte_fallback=True)),
}


def write_directory(path, tokenizer: Tokenizer, config, **files):
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | config
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    @cache
    def loaded(kind: str):
        names = BYTE_NAMES if kind in ("gpt2", "llama3", "qwen2") else NAMES
        path = write_directory(tmp_path_factory.mktemp("model"), KINDS[kind](), names)
        return TextModel.load(path), transformers_tokenizer(path), Vocabulary.load(path)

    return loaded


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_directories(directories, kind, text):
    ours, theirs, vocabulary = directories(kind)
    check(ours, theirs, text)
    check_bytes(ours, vocabulary, text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_alone(directories, kind):
    ours, _, vocabulary = directories(kind)
    check_vocabulary(ours, vocabulary)


def listed(content: str, **flags) -> dict:
    return (
        {"content": content}
        | dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word", "special"), False)
        | flags
    )


ADDED = {
    "listed in the configuration": (
        {
            "added_tokens_decoder": {
                "404": listed("<later>", lstrip=True, special=True),
                "405": listed("<extra>", rstrip=True),
            }
        },
        {},
    ),
    "the configuration's flags": (
        {"added_tokens_decoder": {"403": listed(PLAIN_ADDED, lstrip=True, rstrip=True)}},
        {},
    ),
    "made special by the configuration": (
        {"added_tokens_decoder": {"403": listed(PLAIN_ADDED, special=True)}},
        {},
    ),
    "special ones of the vocabulary": ({"additional_special_tokens": ["the"]}, {}),
    "extra ones of the vocabulary": ({"extra_special_tokens": {"word_token": "the"}}, {}),
    "special_tokens_map": (
        {},
        {
            "special_tokens_map": {
                "bos_token": listed(SPECIAL[0]),
                "eos_token": SPECIAL[1],
                "pad_token": "cat",
            }
        },
    ),
}


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    @cache
    def loaded(how: str):
        config, files = ADDED[how]
        names = {} if "special_tokens_map" in files else BYTE_NAMES
        path = tmp_path_factory.mktemp("model")
        write_directory(path, byte_level(), names | config, **files)
        return TextModel.load(path), transformers_tokenizer(path), Vocabulary.load(path)

    return loaded


@pytest.mark.parametrize("how", ADDED)
@given(text=TEXTS)
def test_added_and_special_tokens(added, how, text):
    ours, theirs, vocabulary = added(how)
    check(ours, theirs, text)
    check_bytes(ours, vocabulary, text)


@pytest.mark.parametrize("how", ADDED)
def test_the_vocabulary_alone_has_added_and_special_tokens(added, how):
    ours, _, vocabulary = added(how)
    check_vocabulary(ours, vocabulary)


def test_what_no_vocabulary_has_gets_no_id(tmp_path):
    """transformers would number it past the end of the model's embedding."""
    model = TextModel.load(write_directory(tmp_path, byte_level(), {"pad_token": "[PAD]"}))
    assert model.encode("[PAD]") == byte_level().encode("[PAD]").ids


@pytest.mark.parametrize(
    "listing", [{"999": listed("<later>")}, {"404": {}}, {"x": listed("a")}, 5]
)
def test_added_tokens_that_cannot_be_as_listed_are_refused(listing, tmp_path):
    write_directory(tmp_path, byte_level(), {"added_tokens_decoder": listing})
    with pytest.raises(TextModelError, match="added token"):
        TextModel.load(tmp_path)


@pytest.mark.parametrize("name", ["additional_special_tokens", "extra_special_tokens"])
def test_extra_special_tokens_that_are_no_list_are_refused(name, tmp_path):
    write_directory(tmp_path, byte_level(), {name: 5})
    with pytest.raises(TextModelError, match=f"tokenizer_config.json: {name} is 5, not a list"):
        TextModel.load(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "has no tokenizer.json and no tokenizer.model$"),
        (["tekken.json"], "tekken.json can't be read: convert to tokenizer.json"),
        (["vocab.json", "merges.txt"], "vocab.json can't be read"),
    ],
)
def test_a_directory_without_a_tokenizer_says_what_is_missing(files, message, tmp_path):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(TextModelError, match=message):
        TextModel.load(tmp_path)


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.CTC(), decoders.BPEDecoder()])
def test_decoders_of_other_kinds_are_refused_by_name(decoder, tmp_path):
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.decoder = decoder
    write_directory(tmp_path, tokenizer, {})
    name = type(decoder).__name__
    with pytest.raises(TextModelError, match=f"its decoder is not supported: {name}: "):
        TextModel.load(tmp_path)
