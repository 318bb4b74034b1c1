import pytest
from tokenizers import Tokenizer, decoders, models

from services.router.text.errors import TextModelError
from services.router.text.pieces import DecoderRule, Pieces, decoder_rule


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
    ],
)
def test_supported_decoders(decoder, rule):
    assert decoder_rule(with_decoder(decoder)) == rule


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.CTC(),
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
    assert [pieces.of(index) for index in range(5)] == [" a ", b"\xc3", "<0xZZ>", b"", b""]
