"""Builds the tokenizer that a SentencePiece model describes, BPE or Unigram.

As SentencePiece itself encodes: text is normalized, superfluous spaces go, spaces become
U+2581 and one comes first; user-defined pieces stay whole; BPE merges the neighbours whose
piece has the best score, and of equal scores the lower id.

Knows no files: `sentencepiece_file` reads tokenizer.model, `gguf_tokenizer` GGUF files.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.common.text.errors import TextModelError

SPACE = "\u2581"
_NORMAL, _USER_DEFINED = 1, 4


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """What a SentencePiece model says."""

    tokens: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    """1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 a byte."""
    is_unigram: bool
    """False: BPE."""
    unknown_id: int
    byte_fallback: bool = False
    """Characters that no piece has are spelled in byte pieces."""
    charsmap: bytes = b""
    """Compiled rules of normalization; empty: none."""
    space_prefix: bool = True
    """A space comes before the text."""
    prefix_every_part: bool = True
    """It also comes before what follows a special or added token."""
    strip_spaces: bool = True
    """Spaces at the ends go, and of several in a row all but one."""


def build(model: SentencePiece) -> Tokenizer:
    """The tokenizer, without added tokens and post-processor. Raises TextModelError."""
    if not 0 <= model.unknown_id < len(model.tokens):
        raise TextModelError(
            f"the unknown token's id is {model.unknown_id}, "
            f"and the vocabulary has {len(model.tokens)} tokens"
        )
    whole = [
        token
        for token, kind in zip(model.tokens, model.types, strict=True)
        if kind == _USER_DEFINED and token
    ]
    try:
        tokenizer = Tokenizer(_unigram(model) if model.is_unigram else _bpe(model, bool(whole)))
        tokenizer.normalizer = normalizers.Sequence(_normalizers(model))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise TextModelError(str(error)) from None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_pre_tokenizers(model, whole))
    tokenizer.decoder = decoders.Sequence(_decoders(model))
    return tokenizer


def _unigram(model: SentencePiece) -> models.Unigram:
    vocabulary = list(zip(model.tokens, model.scores, strict=True))
    return models.Unigram(vocabulary, model.unknown_id, model.byte_fallback)


def _bpe(model: SentencePiece, has_whole: bool) -> models.BPE:
    ids = {token: index for index, token in enumerate(model.tokens)}
    normal = {token: index for token, index in ids.items() if model.types[index] == _NORMAL}
    merges = [
        (token[:cut], token[cut:])
        for token in sorted(normal, key=lambda token: (-model.scores[normal[token]], normal[token]))
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    return models.BPE(
        vocab=ids,
        merges=merges,
        unk_token=model.tokens[model.unknown_id],
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        ignore_merges=has_whole,
    )


def _normalizers(model: SentencePiece) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.strip_spaces:
        steps += [
            normalizers.Replace(Regex(r"\A +| +\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    steps.append(normalizers.Replace(" ", SPACE))
    if model.space_prefix and model.prefix_every_part:
        # Metaspace adds no space before one; SentencePiece does.
        steps.append(normalizers.Replace(Regex(rf"\A{SPACE}"), SPACE * 2))
    return steps


def _pre_tokenizers(model: SentencePiece, whole: list[str]) -> list[pre_tokenizers.PreTokenizer]:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if model.space_prefix:
        scheme = "always" if model.prefix_every_part else "first"
        steps.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False))
    if whole:
        pattern = "|".join(re.escape(piece) for piece in sorted(whole, key=len, reverse=True))
        steps.append(pre_tokenizers.Split(Regex(pattern), behavior="isolated"))
    return steps


def _decoders(model: SentencePiece) -> list[decoders.Decoder]:
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if model.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if model.space_prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    return steps
