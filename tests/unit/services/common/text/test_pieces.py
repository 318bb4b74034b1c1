import pytest
from tokenizers import Regex, Tokenizer, decoders, models

from services.common.text.errors import TextModelError
from services.common.text.pieces import DecoderRule, Pieces, decoder_rule


def with_decoder(decoder, vocab=None):
    tokenizer = Tokenizer(models.BPE(vocab=vocab or {"a": 0}, merges=[]))
    tokenizer.decoder = decoder
    return tokenizer


@pytest.mark.parametrize(
    ("decoder", "rule"),
    [
        (decoders.ByteLevel(), DecoderRule(byte_level=True)),
        (decoders.Sequence([decoders.ByteLevel()]), DecoderRule(byte_level=True)),
        (
            decoders.Sequence(
                [
                    decoders.Replace("_", " "),
                    decoders.ByteFallback(),
                    decoders.Fuse(),
                    decoders.Strip(" ", 2, 0),
                ]
            ),
            DecoderRule(
                replacements=(("_", " "),), byte_fallback=True, stripped=" ", stripped_most=2
            ),
        ),
        (decoders.Fuse(), DecoderRule()),
        (decoders.Replace("_", " "), DecoderRule(replacements=(("_", " "),))),
        (decoders.Metaspace("_"), DecoderRule(space_mark="_", first_space="")),
        (
            decoders.Metaspace("_", prepend_scheme="never"),
            DecoderRule(space_mark="_", first_space=" "),
        ),
        (
            decoders.Sequence([decoders.Metaspace("_"), decoders.ByteFallback(), decoders.Fuse()]),
            DecoderRule(space_mark="_", first_space="", byte_fallback=True),
        ),
        (
            decoders.Sequence(
                [decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("_")])]
            ),
            DecoderRule(space_mark="_", first_space="", byte_fallback=True, marks_in_runs=True),
        ),
    ],
)
def test_supported_decoders(decoder, rule):
    assert decoder_rule(with_decoder(decoder)) == rule


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Strip(" ", 1, 0),
        decoders.Replace(Regex("a+"), "b"),
        decoders.Sequence([decoders.ByteFallback(), decoders.Replace("a", "b"), decoders.Fuse()]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)]),
    ],
)
def test_other_decoders_are_refused_by_name(decoder):
    with pytest.raises(TextModelError, match="decoder is not supported"):
        decoder_rule(with_decoder(decoder))


def test_pieces_of_tokens():
    decoder = decoders.Sequence(
        [decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    vocab = {"_a_": 0, "<0xC3>": 1, "<0xZZ>": 2, "<s>": 3}
    pieces = Pieces(with_decoder(decoder, vocab), skipped={3})
    assert [pieces.of(index) for index in range(5)] == [" a ", b"\xc3", "<0xZZ>", None, None]


def test_the_first_piece_of_a_text_may_be_another():
    vocab = {"_a_": 0, "<0xC3>": 1, "<s>": 2}
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("_")])
    pieces = Pieces(with_decoder(decoder, vocab), skipped={2})
    assert [pieces.first(index) for index in range(3)] == ["a", b"\xc3", None]
    assert [pieces.of(index) for index in range(3)] == [" a ", b"\xc3", None]
    assert [pieces.run(b"_a", first=first) for first in (True, False)] == ["a", " a"]
    assert pieces.run(b"\xc3_", first=True) == "\ufffd\ufffd"
