"""GGUF files: the same ids and the same text as transformers'."""

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from services.common.text import TextModel, Vocabulary
from tests.support.text_parity import (
    TEXTS,
    check,
    check_bytes,
    check_vocabulary,
    transformers_tokenizer,
)
from tests.support.tokenizers import (
    GPT2,
    LLAMA3,
    QWEN2,
    byte_fallback,
    byte_fallback_metadata,
    byte_level,
    byte_level_metadata,
    unigram,
    write_gguf,
)


def composed(text: str) -> str:
    """As Qwen's own tokenizers normalize it, and transformers' reading of a GGUF file does not."""
    return str(normalizers.NFC().normalize_str(text))


GGUF_KINDS = {
    "llama": lambda: byte_fallback_metadata(byte_fallback()),
    "gemma": lambda: byte_fallback_metadata(byte_fallback("never"), "gemma3"),
    "phi3": lambda: byte_fallback_metadata(byte_fallback(), "phi3"),
    **{
        pre: (lambda pre=pre, words=words: byte_level_metadata(byte_level(words), pre))
        for pre, words in {
            "default": GPT2,
            "gpt-2": GPT2,
            "smaug-bpe": LLAMA3,
            "qwen2": QWEN2,
            "qwen35": QWEN2,
            "gpt-4o": LLAMA3,
        }.items()
    },
}


@pytest.fixture(scope="module")
def gguf_files(tmp_path_factory):
    @cache
    def loaded(kind: str):
        path = write_gguf(tmp_path_factory.mktemp("model") / "m.gguf", GGUF_KINDS[kind]())
        options = {"gguf_file": path.name}
        theirs = transformers_tokenizer(path.parent, **options)
        return TextModel.load(path), theirs, Vocabulary.load(path)

    return loaded


@pytest.mark.parametrize("kind", GGUF_KINDS)
@given(text=TEXTS)
def test_gguf_files(gguf_files, kind, text):
    ours, theirs, vocabulary = gguf_files(kind)
    check(ours, theirs, composed(text) if "qwen" in kind else text)
    check_bytes(ours, vocabulary, text)


@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_the_vocabulary_alone(gguf_files, kind):
    ours, _, vocabulary = gguf_files(kind)
    check_vocabulary(ours, vocabulary)


def t5_metadata() -> dict:
    vocabulary = json.loads(unigram().to_str())["model"]["vocab"][3:]
    tokens = ["<pad>", "</s>", "<unk>", *[token for token, _ in vocabulary]]
    return {
        "general.architecture": "t5",
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 3 + [score for _, score in vocabulary],
        "tokenizer.ggml.token_type": [3, 3, 2] + [1] * len(vocabulary),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
    }


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    path = write_gguf(tmp_path_factory.mktemp("model") / "m.gguf", t5_metadata())
    theirs = transformers_tokenizer(path.parent, gguf_file=path.name)
    return TextModel.load(path), theirs, Vocabulary.load(path)


@given(
    text=st.lists(
        st.sampled_from(
            ["the", "cat", " ", "  ", "sat", "é", "你好", "🙂", "</s>", "x2024", "mat,"]
        )
    ).map("".join)
)
def test_a_unigram_gguf_file(t5, text):
    """Texts of words and spaces: what normalizes others transformers does not read."""
    check(*t5[:2], text)


def test_the_vocabulary_of_a_unigram_gguf_file(t5):
    ours, _, vocabulary = t5
    check_vocabulary(ours, vocabulary)
