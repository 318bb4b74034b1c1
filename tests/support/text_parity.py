"""Compares a TextModel with a transformers tokenizer: ids, text, and text as it streams."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from services.common.text import TextModel, Vocabulary
from tests.support.tokenizers import CORPUS, PLAIN_ADDED, SPACE, SPECIAL

TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *CORPUS, *SPECIAL, "<s>", "</s>", "<unk>", PLAIN_ADDED, "<later>", "<extra>",
                SPACE, " ", "  ", "\n", "\t", " the", "cat", "don't", "<0x41>", "e\u0301", "🙂",
            ]
        ),
        st.text(max_size=8),
    ),
    max_size=6,
).map("".join)  # fmt: skip
"""Text with all that makes tokenizers differ."""
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def transformers_tokenizer(path: Path, **options: Any) -> Any:
    """What transformers reads from `path`."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, **options)


def check(ours: TextModel, theirs: Any, text: str) -> None:
    """Asserts that both agree on `text`, streamed from its start and from its middle on."""
    ids = theirs.encode(text)
    assert ours.encode(text) == ids
    for prompt in ([], ids[: len(ids) // 2]):
        output = ids[len(prompt) :]
        whole = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        before = ours.decode(prompt)
        stream = ours.detokenizer(prompt)
        streamed = "".join([stream.push(token_id) for token_id in output]) + stream.finish()
        assert ours.decode(ids) == whole
        if not prompt:
            assert streamed == whole
        elif whole.startswith(before):
            assert before + streamed == whole


def check_vocabulary(ours: TextModel, vocabulary: Vocabulary) -> None:
    """Asserts that what was read without a tokenizer is what the tokenizer says of each token."""
    for token_id, data in enumerate(vocabulary.token_bytes):
        name = vocabulary.special.get(token_id)
        assert ours.token_text(token_id) == (data if name is None else name.encode())
        assert (name is not None) == (ours.decode([token_id, token_id]) == "" and data == b"")
    assert ours.token_text(len(vocabulary.token_bytes)) == b""


def check_bytes(ours: TextModel, vocabulary: Vocabulary, text: str) -> None:
    """Asserts that the tokens' bytes together are the text that they decode to."""
    ids = ours.encode(text)
    joined = b"".join([vocabulary.token_bytes[token_id] for token_id in ids]).decode()
    assert joined in (ours.decode(ids), " " + ours.decode(ids))
