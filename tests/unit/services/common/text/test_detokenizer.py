"""The rule is checked against the tokenizers' own decode of everything at once."""

import os
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from services.common.text import gguf_tokenizer
from services.common.text.byte_alphabet import CHARACTER_OF
from services.common.text.detokenizer import detokenizer
from services.common.text.pieces import Pieces
from tests.support.tokenizers import CORPUS, byte_level, sentencepiece_metadata, unigram

PIECES = ["\u2581", "\u2581\u2581", "a", "\u2581a", "é", "\ufffd", "你", "<0xZZ>", ""]


@cache
def tokenizer(kind: str) -> Tokenizer:
    match kind:
        case "byte-level":
            return byte_level()
        case "unigram":
            return unigram()
        case "unigram, bytes":
            return unigram(byte_fallback=True)
        case "llama":
            return gguf_tokenizer.build(sentencepiece_metadata(PIECES)).tokenizer
        case "gemma":
            metadata = sentencepiece_metadata(PIECES, architecture="gemma3")
            return gguf_tokenizer.build(metadata).tokenizer
        case _:
            return Tokenizer(models.WordLevel({"a": 0, " b": 1, "": 2, "c": 3}, unk_token="a"))


@cache
def pieces(kind: str) -> Pieces:
    added = tokenizer(kind).get_added_tokens_decoder()
    return Pieces(tokenizer(kind), {index for index, token in added.items() if token.special})


def streamed(kind: str, prompt: list[int], output: list[int]) -> list[str]:
    stream = detokenizer(pieces(kind), prompt)
    return [*[stream.push(token_id) for token_id in output], stream.finish()]


def by_the_rule(kind: str, prompt: list[int], output: list[int]) -> str:
    whole, before = tokenizer(kind).decode(prompt + output), tokenizer(kind).decode(prompt)
    return whole[len(os.path.commonprefix([whole, before])) :]  # noqa: RUF071 - of characters


def byte_ids(kind: str, data: bytes) -> list[int]:
    name = CHARACTER_OF.get if kind == "byte-level" else "<0x{:02X}>".format
    return [tokenizer(kind).token_to_id(name(byte)) for byte in data]


@pytest.mark.parametrize(
    "kind", ["byte-level", "llama", "gemma", "words", "unigram", "unigram, bytes"]
)
@given(data=st.data())
def test_random_ids(kind, data):
    beyond = tokenizer(kind).get_vocab_size() + 2
    ids = st.lists(st.integers(0, beyond), max_size=12)
    prompt, output = data.draw(ids), data.draw(ids)
    assert "".join(streamed(kind, prompt, output)) == by_the_rule(kind, prompt, output)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@pytest.mark.parametrize("cut", range(5))
def test_a_token_without_text_ends_a_run_of_bytes_and_one_that_is_skipped_does_not(kind, cut):
    nul, high = byte_ids(kind, b"\x00\x80")
    empty, beyond = tokenizer(kind).token_to_id(""), tokenizer(kind).get_vocab_size() + 1
    for ids in ([nul, empty, high, nul], [nul, beyond, high, nul]):
        text = "".join(streamed(kind, ids[:cut], ids[cut:]))
        assert text == by_the_rule(kind, ids[:cut], ids[cut:])


@pytest.mark.parametrize("kind", ["byte-level", "llama", "gemma", "unigram, bytes"])
@given(
    data=st.lists(
        st.one_of(
            st.binary(max_size=4), st.sampled_from(["é", "🙂", " ", "\ufffd"]).map(str.encode)
        ),
        max_size=6,
    ).map(b"".join),
    cut=st.integers(0, 24),
    words=st.lists(st.integers(0, 300), max_size=3),
)
def test_bytes_cut_anywhere_between_prompt_and_output(kind, data, cut, words):
    ids = [*words, *byte_ids(kind, data), *words]
    prompt, output = ids[:cut], ids[cut:]
    parts = streamed(kind, prompt, output)
    assert "".join(parts) == by_the_rule(kind, prompt, output)


@pytest.mark.parametrize("kind", ["byte-level", "llama", "gemma"])
@given(text=st.text(max_size=8))
def test_valid_text_never_shows_a_replacement_character(kind, text):
    text = text.replace("\ufffd", "")
    parts = streamed(kind, byte_ids(kind, b"a"), byte_ids(kind, text.encode()))
    assert "".join(parts) == text
    assert all("\ufffd" not in part for part in parts)


@pytest.mark.parametrize("kind", ["byte-level", "llama"])
@pytest.mark.parametrize("text", [*CORPUS, " leading", "  two", "\n"])
def test_output_after_a_prompt_keeps_its_spaces(kind, text):
    prompt = tokenizer(kind).encode("Prompt").ids
    ids = tokenizer(kind).encode("Prompt" + text).ids
    if ids[: len(prompt)] == prompt:
        assert "".join(streamed(kind, prompt, ids[len(prompt) :])) == text
    else:
        assert "".join(streamed(kind, [], ids)) == "Prompt" + text


def test_a_code_point_comes_as_soon_as_it_is_complete():
    ids = byte_ids("byte-level", "é🙂".encode())
    assert streamed("byte-level", [], ids) == ["", "é", "", "", "", "🙂", ""]


def test_a_run_of_byte_tokens_comes_where_it_ends():
    kind = "gemma"
    letter = tokenizer(kind).token_to_id("a")
    ids = [*byte_ids(kind, "🙂".encode()), letter, letter]
    assert streamed(kind, [], ids) == ["", "", "", "", "🙂a", "a", ""]


@pytest.mark.parametrize(("kind", "expected"), [("byte-level", "\ufffd"), ("gemma", "\ufffd" * 3)])
def test_an_unfinished_code_point_is_shown_at_the_end_as_the_tokenizer_decodes_it(kind, expected):
    ids = byte_ids(kind, "🙂".encode()[:3])
    assert streamed(kind, [], ids) == ["", "", "", expected]
    assert tokenizer(kind).decode(ids) == expected


@pytest.mark.parametrize("kind", ["byte-level", "gemma"])
def test_a_code_point_that_the_prompt_began_belongs_to_the_output(kind):
    ids = byte_ids(kind, "🙂".encode())
    assert "".join(streamed(kind, ids[:2], ids[2:])) == "🙂"


def test_special_tokens_and_ids_beyond_the_vocabulary_are_skipped():
    kind = "byte-level"
    ids = byte_ids(kind, "é".encode())
    assert streamed(kind, [], [ids[0], 0, 10**6, ids[1], 1]) == ["", "", "", "é", "", ""]


def test_only_the_first_space_of_the_whole_text_is_stripped():
    kind = "llama"
    word = tokenizer(kind).token_to_id("\u2581a")
    bos = 1
    assert streamed(kind, [bos], [word, word]) == ["a", " a", ""]
    assert streamed(kind, [bos, word], [word, word]) == [" a", " a", ""]


@pytest.mark.parametrize("kind", ["unigram", "unigram, bytes"])
def test_metaspace_takes_the_spaces_of_the_first_token_only(kind):
    the, space = map(tokenizer(kind).token_to_id, ("\u2581the", "\u2581"))
    assert streamed(kind, [1], [the, the, space]) == ["the", " the", " ", ""]
    assert streamed(kind, [1, the], [the]) == [" the", ""]


@pytest.mark.parametrize("kind", ["byte-level", "gemma"])
def test_long_runs_of_bad_bytes_cost_no_more_a_token_than_short_ones(kind):
    [bad] = byte_ids(kind, b"\xff")
    stream = detokenizer(pieces(kind), [bad] * 1000)
    count = 100_000
    text = "".join([stream.push(bad) for _ in range(count)]) + stream.finish()
    assert text == "\ufffd" * count
