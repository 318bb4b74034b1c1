"""tokenizer.model: the same ids and the same text as transformers' reading of it."""

import json
from functools import cache

import pytest
from hypothesis import given

from services.common.text import TextModel, TextModelError, Vocabulary
from tests.support.text_parity import NAMES, TEXTS, check, check_bytes, check_vocabulary
from tests.support.tokenizers import (
    BYTES,
    PLAIN_ADDED,
    byte_fallback,
    byte_fallback_metadata,
    unigram,
)

SENTENCEPIECE = {
    "llama": {"model_type": 2, "byte_fallback": True, "strip": False},
    "llama, space first": {"model_type": 2, "byte_fallback": True, "legacy": False},
    "bpe": {"model_type": 2},
    "bpe, no space": {"model_type": 2, "byte_fallback": True, "prefix": False, "strip": False},
    "unigram": {"model_type": 1},
    "unigram, bytes": {"model_type": 1, "byte_fallback": True, "strip": False},
    "unigram, no space": {"model_type": 1, "prefix": False},
}


def sentencepiece_proto(model_type, byte_fallback=False, prefix=True, strip=True):
    from transformers.utils import sentencepiece_model_pb2_new as pb2

    proto = pb2.ModelProto()
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type, trainer.byte_fallback = model_type, byte_fallback
    normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces = prefix, strip
    for token, score in bpe_pieces() if model_type == 2 else unigram_pieces():
        if token in ("<unk>", "<s>", "</s>"):
            kind = 2 if token == "<unk>" else 3
        else:
            kind = 4 if token == PLAIN_ADDED else 6 if token in BYTES else 1
        if kind != 6 or byte_fallback:
            proto.pieces.add(piece=token, score=score, type=kind)
    return proto


def bpe_pieces() -> list[tuple[str, float]]:
    metadata = byte_fallback_metadata(byte_fallback())
    return list(
        zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"], strict=True)
    )


def unigram_pieces() -> list[tuple[str, float]]:
    pieces = json.loads(unigram(byte_fallback=True).to_str())["model"]["vocab"]
    return [*map(tuple, pieces), (PLAIN_ADDED, 0.0)]


@pytest.fixture(scope="module")
def sentencepiece_files(tmp_path_factory):
    @cache
    def loaded(kind: str):
        from transformers import PreTrainedTokenizerFast
        from transformers.convert_slow_tokenizer import SpmConverter

        settings = dict(SENTENCEPIECE[kind])
        legacy = settings.pop("legacy", True)
        proto = sentencepiece_proto(**settings)
        vocabulary = [(piece.piece, piece.score) for piece in proto.pieces]
        if settings["model_type"] == 2:
            vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
        backend = SpmConverter.build_tokenizer_from_spm_proto(proto, vocabulary, legacy=legacy)
        path = tmp_path_factory.mktemp("model")
        (path / "tokenizer.model").write_bytes(proto.SerializeToString())
        (path / "tokenizer_config.json").write_text(json.dumps({"legacy": legacy}))
        theirs = PreTrainedTokenizerFast(tokenizer_object=backend, **NAMES)
        return TextModel.load(path), theirs, Vocabulary.load(path)

    return loaded


@pytest.mark.parametrize("kind", SENTENCEPIECE)
@given(text=TEXTS)
def test_sentencepiece_files(sentencepiece_files, kind, text):
    ours, theirs, vocabulary = sentencepiece_files(kind)
    check(ours, theirs, text)
    check_bytes(ours, vocabulary, text)


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_the_vocabulary_alone(sentencepiece_files, kind):
    ours, _, vocabulary = sentencepiece_files(kind)
    check_vocabulary(ours, vocabulary)


def write_model(path, proto, config=None):
    (path / "tokenizer.model").write_bytes(proto.SerializeToString())
    (path / "tokenizer_config.json").write_text(json.dumps(config or {}))
    return path


def test_names_of_special_tokens_and_added_tokens(tmp_path):
    proto = sentencepiece_proto(2, byte_fallback=True)
    size = len(proto.pieces)
    path = write_model(tmp_path, proto, {"add_bos_token": True, "add_eos_token": True})
    (path / "added_tokens.json").write_text(json.dumps({"<later>": size}))
    model = TextModel.load(path)
    ids = model.encode("a<later>b")
    assert [ids[0], ids[-1]] == [1, 2]
    assert size in ids
    assert model.decode(ids).replace(" ", "") == "a<later>b"
    check_vocabulary(model, Vocabulary.load(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda proto: setattr(proto.trainer_spec, "model_type", 3), "neither BPE nor Unigram"),
        (lambda proto: setattr(proto.trainer_spec, "unk_id", -1), "unknown token's id is -1"),
        (lambda proto: proto.ClearField("pieces"), "it has no pieces"),
        (
            lambda proto: setattr(proto.normalizer_spec, "precompiled_charsmap", b"x"),
            "tokenizer.model: ",
        ),
    ],
)
def test_what_cannot_be_read_is_named(change, message, tmp_path):
    proto = sentencepiece_proto(1)
    change(proto)
    with pytest.raises(TextModelError, match=message):
        TextModel.load(write_model(tmp_path, proto))


def test_another_file_of_that_name_is_refused(tmp_path):
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
    for kind in (TextModel, Vocabulary):
        with pytest.raises(TextModelError, match="is not a SentencePiece model"):
            kind.load(tmp_path)
