import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from services.common.text import byte_alphabet
from services.common.text.errors import TextModelError
from services.common.text.word_rules import word_rule

TEXT = "HelloWorld don't 12345 e\u0301 you/\n\n  x(y"


def words(name: str, text: str = TEXT) -> list[str]:
    tokenizer = Tokenizer(models.BPE())
    word_rule(name).apply(tokenizer)
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    assert tokenizer.pre_tokenizer is not None
    return [
        byte_alphabet.read(piece).decode()
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", "HelloWorld| don|'t| 12345| e|\u0301| you|/|\n\n | x|(|y"),
        ("olmo", "HelloWorld| don|'t| 12345| \u00e9| you|/|\n\n | x|(|y"),
        ("starcoder", "HelloWorld| don|'t| |1|2|3|4|5| e|\u0301| you|/|\n\n | x|(|y"),
        ("llama-bpe", "HelloWorld| don|'t| |123|45| e|\u0301| you|/\n\n| | x|(y"),
        ("qwen2", "HelloWorld| don|'t| |1|2|3|4|5| \u00e9| you|/\n\n| | x|(y"),
        ("tekken", "Hello|World| don|'t| |1|2|3|4|5| e\u0301| you|/\n\n| | x|(y"),
        ("gpt-4o", "Hello|World| don't| |123|45| e\u0301| you|/\n\n| | x|(y"),
        ("deepseek-v3", "HelloWorld| don|'t| |123|45| e\u0301| you|/\n\n| | x|(y"),
    ],
)
def test_words(name, expected):
    assert words(name) == expected.split("|")


@pytest.mark.parametrize("name", ["default", "phi-2"])
def test_gpt2s_words_by_other_names(name):
    assert words(name) == words("gpt-2")


def test_gpt2s_words_are_the_librarys_own():
    own = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(TEXT)
    assert words("gpt-2") == [byte_alphabet.read(piece).decode() for piece, _ in own]


def test_what_goes_with_the_words():
    whole = {name for name in ("llama-bpe", "tekken", "smaug-bpe") if word_rule(name).adds_bos}
    assert whole == {"llama-bpe", "tekken"}
    assert all(word_rule(name).whole_words_first for name in whole)
    assert not word_rule("smaug-bpe").whole_words_first


def test_another_name_is_refused_with_those_that_are_known():
    with pytest.raises(TextModelError, match=r"'bloom': supported are .*llama-bpe, .*tekken"):
        word_rule("bloom")
