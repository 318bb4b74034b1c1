import json
import threading
import time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, processors

from baton.errors import InvalidRequest
from services.common.text import Conversation, Message, TextModel, TextModelError, gguf_tokenizer
from tests.support.tokenizers import (
    CORPUS,
    QWEN2,
    SPECIAL,
    byte_level,
    byte_level_metadata,
    sentencepiece_metadata,
    write_gguf,
)

BOS, EOS = 0, 1
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
MESSAGES = Conversation([Message("user", "hi")])


def write_directory(path, *, config=None, tokenizer=None, **files):
    tokenizer = tokenizer or Tokenizer.from_str(byte_level().to_str())
    tokenizer.save(str(path / "tokenizer.json"))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


def adds_bos():
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[SPECIAL[0], "$A"], special_tokens=[(SPECIAL[0], BOS)]
    )
    return tokenizer


NAMES = {"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[1], "lstrip": False}}


@pytest.mark.parametrize(
    ("make", "config", "before", "after"),
    [
        (byte_level, None, [], []),
        (byte_level, NAMES, [], []),
        (byte_level, NAMES | {"add_bos_token": True}, [BOS], []),
        (byte_level, NAMES | {"add_bos_token": True, "add_eos_token": True}, [BOS], [EOS]),
        (byte_level, {"add_bos_token": True}, [], []),
        (adds_bos, NAMES, [BOS], []),
        (adds_bos, NAMES | {"add_bos_token": None}, [BOS], []),
        (adds_bos, NAMES | {"add_bos_token": False}, [], []),
        (adds_bos, NAMES | {"add_bos_token": True}, [BOS], []),
    ],
)
def test_special_tokens_are_added_as_the_directory_says(make, config, before, after, tmp_path):
    model = TextModel.load(write_directory(tmp_path, tokenizer=make(), config=config))
    plain = byte_level().encode("the cat", add_special_tokens=False).ids
    assert model.encode("the cat") == before + plain + after


def test_a_text_that_writes_bos_itself_gets_another_as_the_tokenizer_says(tmp_path):
    model = TextModel.load(write_directory(tmp_path, tokenizer=adds_bos()))
    assert model.encode(SPECIAL[0] + "a")[:2] == [BOS, BOS]


def test_truncation_and_padding_of_a_directory_are_not_applied(tmp_path):
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=500)
    model = TextModel.load(write_directory(tmp_path, tokenizer=tokenizer))
    assert model.encode(CORPUS[0]) == byte_level().encode(CORPUS[0]).ids


def test_tokens_that_the_config_calls_special_are_skipped_in_text(tmp_path):
    config = NAMES | {"additional_special_tokens": ["<think>"]}
    model = TextModel.load(write_directory(tmp_path, config=config))
    ids = model.encode("a<think>b")
    assert model.decode(ids) == "ab"
    detokenizer = model.detokenizer([])
    assert "".join([detokenizer.push(i) for i in ids]) + detokenizer.finish() == "ab"


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({"chat_template": TEMPLATE}, {}),
        ({"chat_template": [{"name": "tools", "template": "no"},
                            {"name": "default", "template": TEMPLATE}]}, {}),
        ({"chat_template": "no"}, {"chat_template__jinja": TEMPLATE}),
        ({}, {"chat_template__jinja": TEMPLATE}),
    ],
)  # fmt: skip
def test_chat_templates_of_a_directory(config, files, tmp_path):
    config = NAMES | config | {"add_bos_token": True}
    model = TextModel.load(write_directory(tmp_path, config=config, **files))
    assert model.has_chat_template
    assert model.render_chat(MESSAGES) == f"{SPECIAL[0]}user: hi\n"
    ids = model.encode_chat(MESSAGES)
    assert ids.count(BOS) == 1
    assert ids[0] == BOS
    assert model.decode(ids) == "user: hi\n"


@pytest.mark.parametrize(
    "config",
    [None, {}, {"chat_template": [{"name": "tools", "template": "x"}]}, {"chat_template": [1]}],
)
def test_a_model_without_a_template_refuses_chats(config, tmp_path):
    model = TextModel.load(write_directory(tmp_path, config=config))
    assert not model.has_chat_template
    with pytest.raises(InvalidRequest, match=r"no chat template: .*--chat-template") as caught:
        model.encode_chat(MESSAGES)
    assert caught.value.reason == "NO_CHAT_TEMPLATE"


def test_a_template_of_its_own_file_goes_before_the_models(tmp_path):
    path = write_directory(tmp_path, config={"chat_template": "no"})
    own = tmp_path / "own.jinja"
    own.write_text(TEMPLATE)
    assert TextModel.load(path, own).render_chat(MESSAGES) == "user: hi\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{% if %}", "own.jinja: the chat template cannot be parsed: Expected"),
        (b"\xff", "own.jinja: 'utf-8' codec"),
        (None, "own.jinja: .*No such file"),
    ],
)
def test_a_bad_file_of_a_template_is_named(content, message, tmp_path):
    own = tmp_path / "own.jinja"
    if content is not None:
        own.write_bytes(content)
    with pytest.raises(TextModelError, match=message):
        TextModel.load(write_directory(tmp_path), own)


def test_a_gguf_file(tmp_path):
    metadata = byte_level_metadata(byte_level(), "llama-bpe")
    metadata["tokenizer.chat_template"] = TEMPLATE
    model = TextModel.load(write_gguf(tmp_path / "m.gguf", metadata))
    assert model.encode("a")[0] == BOS
    assert model.decode(model.encode(CORPUS[3])) == CORPUS[3]
    assert model.render_chat(MESSAGES) == f"{SPECIAL[0]}user: hi\n"


def broken(path, what):
    match what:
        case "missing":
            return path / "none"
        case "empty directory":
            return path
        case "not gguf":
            (path / "m.gguf").write_bytes(b"nothing of the kind")
            return path / "m.gguf"
        case "truncated":
            file = write_gguf(path / "m.gguf", sentencepiece_metadata(["a"]))
            file.write_bytes(file.read_bytes()[:500])
            return file
        case "unknown kind":
            metadata = sentencepiece_metadata(["a"]) | {"tokenizer.ggml.model": "rwkv"}
            return write_gguf(path / "m.gguf", metadata)
        case "bad json":
            return write_directory(path, tokenizer_config__json="{")
        case "unknown bos":
            return write_directory(path, config={"bos_token": "<none>", "add_bos_token": True})
        case "bad tokenizer":
            (path / "tokenizer.json").write_text("{}")
            return path
        case _:
            words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
            words.decoder = decoders.WordPiece()
            return write_directory(path, tokenizer=words)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("missing", "none does not exist"),
        ("empty directory", "has no tokenizer.json"),
        ("not gguf", "m.gguf is neither a directory nor a GGUF file"),
        ("truncated", "m.gguf: truncated"),
        ("unknown kind", "m.gguf: tokenizer.ggml.model is 'rwkv'"),
        ("bad json", "tokenizer_config.json: "),
        ("unknown bos", "tokenizer.json: '<none>', which begins or ends texts"),
        ("bad tokenizer", "tokenizer.json: "),
        ("other decoder", "tokenizer.json: its decoder is not supported"),
    ],
)
def test_what_cannot_be_loaded_is_named(what, message, tmp_path):
    with pytest.raises(TextModelError, match=message):
        TextModel.load(broken(tmp_path, what))


@cache
def tokenizer_of(kind):
    match kind:
        case "byte-level":
            return byte_level()
        case "composing":
            return byte_level(QWEN2, composed=True)
        case _:
            pieces = ["\u2581", "a", "aa", "aaaa"]
            return gguf_tokenizer.build(sentencepiece_metadata(pieces)).tokenizer


@cache
def model_of(kind):
    return TextModel(tokenizer_of(kind), {})


mixed_texts = st.lists(
    st.sampled_from([*"aae\n ", "\u0301", "\u0308", "🙂", *CORPUS, *SPECIAL, "</s>"]), max_size=40
).map("".join)


@pytest.mark.parametrize("kind", ["byte-level", "composing", "sentencepiece"])
@given(text=mixed_texts)
def test_no_text_that_fits_is_longer_than_max_characters(kind, text):
    model = model_of(kind)
    assert len(text) <= model.max_characters(len(model.encode(text)))


@pytest.mark.parametrize("kind", ["byte-level", "composing", "sentencepiece"])
@given(text=mixed_texts)
def test_encode_is_the_tokenizers_own(kind, text):
    assert model_of(kind).encode(text) == tokenizer_of(kind).encode(text).ids


def test_encode_lets_other_threads_run():
    model = model_of("byte-level")
    text = " ".join(CORPUS) * 3000
    started = threading.Event()

    def encode():
        started.set()
        model.encode(text)

    thread = threading.Thread(target=encode)
    thread.start()
    started.wait(10)
    ticks = 0
    while thread.is_alive():
        ticks += 1
        time.sleep(0.001)
    assert ticks > 10
