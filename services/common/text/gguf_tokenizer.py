"""Builds a tokenizer from what a GGUF file says about one.

A GGUF file holds a vocabulary and a few flags, not a tokenizer's rules; those follow from the
name of its kind (`tokenizer.ggml.model`):

- "llama": SentencePiece's BPE with byte fallback. Such files rarely list merges: every split
  of a token into two others is one, ranked as the tokens are. Tokens rank by score (Llama 2,
  Mistral, Phi-3); in Gemma's vocabularies, whose scores do not follow the merges, by their
  place. Gemma's files spell runs of spaces as spaces; the rules look them up as U+2581.
- "gpt2": byte-level BPE with merges; `tokenizer.ggml.pre` names how text is cut into words.
- "t5": SentencePiece's Unigram, with its normalization (`sentencepiece`).

Control tokens (type 3) and those that the file names (bos, eos, eot, ...) become special
tokens, user-defined ones (type 4) plain added tokens; SentencePiece's Unigram keeps those whole
itself.

Knows no requests and no templates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.common.text import gguf_vocabulary, sentencepiece
from services.common.text.byte_alphabet import BYTE_OF, spell
from services.common.text.errors import TextModelError
from services.common.text.gguf_vocabulary import BYTE, NORMAL, USER_DEFINED, GGUFVocabulary
from services.common.text.word_rules import WordRule, word_rule

_SPACE = sentencepiece.SPACE


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """A tokenizer as a GGUF file describes it, without a post-processor."""

    tokenizer: Tokenizer
    special_tokens: dict[str, str]
    """By name, such as bos_token, as far as the file has them."""
    add_bos: bool
    add_eos: bool


def build(metadata: dict[str, Any]) -> GGUFTokenizer:
    """Builds the tokenizer that `metadata` (of `baton.gguf.read_header`) describes.

    Takes about two seconds for 262,144 tokens. Raises TextModelError, which names the entry.
    """
    vocabulary = gguf_vocabulary.read(metadata)
    kind = metadata["tokenizer.ggml.model"]
    add_bos, add_eos = True, False
    if kind == "llama":
        vocabulary, tokenizer = _sentencepiece(vocabulary)
    elif kind == "gpt2":
        rule = word_rule(metadata.get("tokenizer.ggml.pre", "default"))
        vocabulary, tokenizer = _byte_level(vocabulary, rule)
        add_bos = rule.adds_bos
    elif kind == "t5":
        tokenizer = _unigram(vocabulary)
        add_bos, add_eos = False, True
    else:
        raise TextModelError(
            f"tokenizer.ggml.model is {kind!r}: supported are 'llama' (SentencePiece BPE), "
            "'gpt2' (byte-level BPE) and 't5' (SentencePiece Unigram)"
        )
    _add_special(tokenizer, vocabulary.special())
    if kind != "t5":
        _add_plain(tokenizer, vocabulary.of_type(USER_DEFINED))
    return GGUFTokenizer(
        tokenizer,
        vocabulary.special_names(),
        bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
        bool(metadata.get("tokenizer.ggml.add_eos_token", add_eos)),
    )


def _add_special(tokenizer: Tokenizer, tokens: Sequence[str]) -> None:
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in dict.fromkeys(tokens)]
    )


def _add_plain(tokenizer: Tokenizer, tokens: Sequence[str]) -> None:
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=False)
            for token in tokens
            if not _is_run_of_spaces(token)
        ]
    )


def _sentencepiece(vocabulary: GGUFVocabulary) -> tuple[GGUFVocabulary, Tokenizer]:
    metadata = vocabulary.metadata
    architecture = str(metadata.get("general.architecture", ""))
    is_gemma = architecture.startswith("gemma")
    tokens = vocabulary.tokens
    if is_gemma:
        tokens = [_SPACE * len(t) if " " in t and not t.strip() else t for t in tokens]
    vocabulary = GGUFVocabulary(tokens, vocabulary.types, metadata)
    ids = _ids(tokens)
    if "tokenizer.ggml.merges" in metadata:
        merges = _listed_merges(metadata)
    else:
        order = range(len(tokens)) if is_gemma else _by_score(vocabulary)
        merges = list(_implied_merges(tokens, order, ids))
    tokenizer = Tokenizer(
        _bpe(
            vocab=ids,
            merges=merges,
            unk_token=vocabulary.named("unknown"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    prefixed = not is_gemma and bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    if prefixed:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    if is_gemma:
        tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    elif architecture == "phi3" and prefixed:
        # Its makers' tokenizer puts a space before text that begins with one, too.
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=_SPACE, prepend_scheme="first" if prefixed else "never", split=False
        )
    return vocabulary, tokenizer


def _scores(vocabulary: GGUFVocabulary) -> list[float]:
    scores: list[float] = vocabulary.metadata.get("tokenizer.ggml.scores", [])
    if len(scores) != len(vocabulary.tokens):
        raise TextModelError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(vocabulary.tokens)} tokens"
        )
    return scores


def _by_score(vocabulary: GGUFVocabulary) -> list[int]:
    """The tokens' ids, best score first; of equals the lower id."""
    scores = _scores(vocabulary)
    return sorted(range(len(scores)), key=lambda index: -scores[index])


def _implied_merges(
    tokens: list[str], order: Sequence[int], ids: dict[str, int]
) -> Iterator[tuple[str, str]]:
    for index in order:
        token = tokens[index]
        for cut in range(len(token) - 1, 0, -1):
            left = token[:cut]
            if left in ids:
                right = token[cut:]
                if right in ids:
                    yield left, right


def _listed_merges(metadata: dict[str, Any]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for index, merge in enumerate(metadata["tokenizer.ggml.merges"]):
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise TextModelError(f"tokenizer.ggml.merges[{index}] is not two tokens")
        merges.append((left, right))
    return merges


def _bpe(**settings: Any) -> models.BPE:
    try:
        return models.BPE(**settings)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise TextModelError(f"tokenizer.ggml.merges: {error}") from None


def _byte_level(vocabulary: GGUFVocabulary, rule: WordRule) -> tuple[GGUFVocabulary, Tokenizer]:
    metadata = vocabulary.metadata
    if "tokenizer.ggml.merges" not in metadata:
        raise TextModelError("has no tokenizer.ggml.merges")
    merges = _listed_merges(metadata)
    tokens = [
        spell(token) if kind == NORMAL and not BYTE_OF.keys() >= set(token) else token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    tokenizer = Tokenizer(
        _bpe(vocab=_ids(tokens), merges=merges, ignore_merges=rule.whole_words_first)
    )
    rule.apply(tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    return GGUFVocabulary(tokens, vocabulary.types, metadata), tokenizer


def _unigram(vocabulary: GGUFVocabulary) -> Tokenizer:
    metadata = vocabulary.metadata
    charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap", ())
    return sentencepiece.build(
        sentencepiece.SentencePiece(
            tokens=vocabulary.tokens,
            scores=_scores(vocabulary),
            types=vocabulary.types,
            is_unigram=True,
            unknown_id=metadata.get("tokenizer.ggml.unknown_token_id", 2),
            byte_fallback=BYTE in vocabulary.types,
            charsmap=bytes(value & 0xFF for value in charsmap),
            space_prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
            strip_spaces=bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", True)),
        )
    )


def _ids(tokens: list[str]) -> dict[str, int]:
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise TextModelError(f"tokenizer.ggml.tokens has {twice!r} twice")
    return ids


def _is_run_of_spaces(token: str) -> bool:
    return bool(token) and not token.strip(_SPACE)
