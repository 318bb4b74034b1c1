from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.text import gguf_tokenizer
from services.common.text.errors import TextModelError
from tests.support.tokenizers import (
    CORPUS,
    GPT2,
    LLAMA3,
    PLAIN_ADDED,
    QWEN2,
    SPECIAL,
    byte_level,
    byte_level_metadata,
    sentencepiece_metadata,
)

PIECES = [
    "\u2581\u2581", "ab", "\u2581a", "abc", "bc", "\u2581ab", "cab", "aa", "aaaa", "bb",
    "\u2581abc", "\u2581", "a", "b", "c", "é",
]  # fmt: skip
KINDS = {
    "gpt-2": {"words": GPT2},
    "default": {"words": GPT2},
    "llama-bpe": {"words": LLAMA3, "ignore_merges": True},
    "qwen2": {"words": QWEN2, "composed": True},
    "smaug-bpe": {"words": LLAMA3},
}
texts = st.text(
    st.one_of(
        st.sampled_from([*"abc é\n\t 12'", "\u0301", "你", "🙂"]), st.characters(codec="utf-8")
    )
)
mixed_texts = st.lists(
    st.one_of(st.sampled_from([*CORPUS, *SPECIAL, PLAIN_ADDED, "don't", "  "]), texts), max_size=6
).map("".join)


def greedy(text: str, metadata: dict, rank: dict[str, float]) -> list[int]:
    """SentencePiece's BPE in plain words: merge the best-ranked neighbours, first ones first."""
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    symbols = list(text)
    while True:
        pairs = [
            (rank[left + right], place)
            for place, (left, right) in enumerate(pairwise(symbols))
            if left + right in rank
        ]
        if not pairs:
            break
        _, place = min(pairs)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    return [
        index
        for symbol in symbols
        for index in (
            [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        )
    ]


@given(st.text("abc é🙂", max_size=30))
def test_sentencepiece_merges_by_score(text):
    scores = [float((index * 7) % len(PIECES)) for index in range(len(PIECES))]
    metadata = sentencepiece_metadata(PIECES, scores=scores)
    metadata["tokenizer.ggml.add_space_prefix"] = False
    rank = {piece: -score for piece, score in zip(PIECES, scores, strict=True)}
    tokenizer = gguf_tokenizer.build(metadata).tokenizer
    expected = greedy(text.replace(" ", "\u2581"), metadata, rank)
    assert tokenizer.encode(text).ids == expected


@given(st.text("abc é🙂", max_size=30))
def test_gemma_merges_by_place_whatever_the_scores(text):
    pieces = ["  ", *PIECES[1:]]
    metadata = sentencepiece_metadata(pieces, architecture="gemma3", scores=[0.0] * len(pieces))
    rank = {piece: index for index, piece in enumerate(PIECES)}
    tokenizer = gguf_tokenizer.build(metadata).tokenizer
    metadata["tokenizer.ggml.tokens"] = [
        "\u2581\u2581" if token == "  " else token for token in metadata["tokenizer.ggml.tokens"]
    ]
    expected = greedy(text.replace(" ", "\u2581"), metadata, rank)
    assert tokenizer.encode(text).ids == expected


def test_sentencepiece_text_gets_a_leading_space_once_and_loses_it_again():
    tokenizer = gguf_tokenizer.build(sentencepiece_metadata(PIECES)).tokenizer
    assert tokenizer.encode("abc").tokens == ["\u2581abc"]
    assert tokenizer.encode("abc</s>abc").tokens == ["\u2581abc", "</s>", "abc"]
    assert tokenizer.decode(tokenizer.encode("abc").ids) == "abc"


def test_control_tokens_are_special_and_user_defined_ones_are_not():
    metadata = sentencepiece_metadata([*PIECES, "[tool]"], architecture="gemma3")
    metadata["tokenizer.ggml.token_type"][-1] = 4
    tokenizer = gguf_tokenizer.build(metadata).tokenizer
    encoding = tokenizer.encode("a<s>[tool]b")
    assert encoding.tokens == ["a", "<s>", "[tool]", "b"]
    assert tokenizer.decode(encoding.ids, skip_special_tokens=True) == "a[tool]b"


@pytest.mark.parametrize("name", ["bos", "eos", "unknown", "padding", "mask", "eot", "eom"])
def test_tokens_that_the_file_names_are_special_whatever_their_type(name):
    metadata = byte_level_metadata(byte_level(), "gpt-2")
    token = metadata["tokenizer.ggml.tokens"].index("the")
    metadata[f"tokenizer.ggml.{name}_token_id"] = token
    built = gguf_tokenizer.build(metadata)
    assert built.tokenizer.get_added_tokens_decoder()[token].special
    assert built.tokenizer.decode([token]) == ""
    assert ("the" in built.special_tokens.values()) == (name not in ("eot", "eom"))


def test_sentencepiece_merges_that_the_file_lists_count_rather_than_scores():
    metadata = sentencepiece_metadata(PIECES)
    assert gguf_tokenizer.build(metadata).tokenizer.encode(" abc").tokens == ["\u2581abc"]
    metadata["tokenizer.ggml.merges"] = ["b c"]
    listed = gguf_tokenizer.build(metadata).tokenizer
    assert listed.encode(" abc").tokens == ["\u2581", "a", "bc"]


def test_a_unigram_file_strips_spaces_unless_it_says_otherwise():
    metadata = sentencepiece_metadata(["\u2581", "\u2581a", "a"], scores=[-2.0, -1.0, -2.0])
    metadata |= {"tokenizer.ggml.model": "t5"}
    built = gguf_tokenizer.build(metadata)
    assert (built.add_bos, built.add_eos) == (False, True)
    assert built.tokenizer.encode("  a   a ").tokens == ["\u2581a", "\u2581a"]
    assert built.tokenizer.encode("é").tokens == ["\u2581", "<0xC3>", "<0xA9>"]
    metadata["tokenizer.ggml.remove_extra_whitespaces"] = False
    metadata["tokenizer.ggml.add_space_prefix"] = False
    kept = gguf_tokenizer.build(metadata).tokenizer
    assert kept.encode("  a").tokens == ["\u2581", "\u2581a"]
    assert kept.encode("a").tokens == ["a"]


@pytest.mark.parametrize("pre", KINDS)
@given(text=mixed_texts)
def test_byte_level_equals_the_tokenizer_it_was_written_from(pre, text):
    original = byte_level(**KINDS[pre])
    built = gguf_tokenizer.build(byte_level_metadata(original, pre)).tokenizer
    expected = original.encode(text)
    assert built.encode(text).ids == expected.ids
    assert built.decode(expected.ids) == original.decode(expected.ids)


def test_the_kinds_cut_words_differently():
    text = "don't 12345 e\u0301 \n\n x"
    found = {
        pre: tuple(
            gguf_tokenizer.build(byte_level_metadata(byte_level(GPT2), pre))
            .tokenizer.encode(text)
            .tokens
        )
        for pre in ("gpt-2", "llama-bpe", "qwen2")
    }
    assert len(set(found.values())) == 3


@pytest.mark.parametrize(
    ("said", "pre", "expected"),
    [
        (None, "gpt-2", (False, False)),
        (None, "llama-bpe", (True, False)),
        (None, "qwen2", (False, False)),
        (False, "llama-bpe", (False, False)),
        (True, "gpt-2", (True, False)),
    ],
)
def test_byte_level_files_that_do_not_say_add_bos_as_their_kind_does(said, pre, expected):
    metadata = byte_level_metadata(byte_level(), pre)
    if said is not None:
        metadata["tokenizer.ggml.add_bos_token"] = said
    built = gguf_tokenizer.build(metadata)
    assert (built.add_bos, built.add_eos) == expected


def test_sentencepiece_adds_bos_unless_the_file_says_otherwise():
    metadata = sentencepiece_metadata(PIECES)
    assert gguf_tokenizer.build(metadata).add_bos
    metadata["tokenizer.ggml.add_bos_token"] = False
    metadata["tokenizer.ggml.add_eos_token"] = True
    built = gguf_tokenizer.build(metadata)
    assert (built.add_bos, built.add_eos) == (False, True)
    assert built.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_a_regular_byte_level_token_spelled_in_plain_text_is_respelled():
    metadata = byte_level_metadata(byte_level(), "gpt-2")
    metadata["tokenizer.ggml.tokens"].append("a b")
    metadata["tokenizer.ggml.token_type"].append(1)
    tokenizer = gguf_tokenizer.build(metadata).tokenizer
    assert tokenizer.decode([len(metadata["tokenizer.ggml.tokens"]) - 1]) == "a b"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model is 'rwkv'"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer.ggml.scores has 0 entries"),
        ({"tokenizer.ggml.model": None}, "has no tokenizer.ggml.model"),
        ({"tokenizer.ggml.tokens": None}, "has no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "tokenizer.ggml.pre is 'unheard-of'"),
        ({"tokenizer.ggml.merges": None}, "has no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a b", "abc"]}, r"merges\[1\] is not two tokens"),
        ({"tokenizer.ggml.merges": ["zz zz"]}, "tokenizer.ggml.merges: "),
        ({"tokenizer.ggml.token_type": [1]}, "token_type has 1 entries"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id is 1000000"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    metadata = byte_level_metadata(byte_level(), "gpt-2") | change
    metadata = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(TextModelError, match=message):
        gguf_tokenizer.build(metadata)


def test_scores_that_are_missing_and_tokens_that_are_there_twice_are_named():
    metadata = sentencepiece_metadata(PIECES)
    metadata["tokenizer.ggml.scores"] = metadata["tokenizer.ggml.scores"][:-1]
    with pytest.raises(TextModelError, match="scores has"):
        gguf_tokenizer.build(metadata)
    with pytest.raises(TextModelError, match="has 'ab' twice"):
        gguf_tokenizer.build(sentencepiece_metadata([*PIECES, "ab"]))
