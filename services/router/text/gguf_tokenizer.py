"""Builds a tokenizer from what a GGUF file says about one.

A GGUF file holds a vocabulary and a few flags, not a tokenizer's rules; those follow from the
name of its kind (`tokenizer.ggml.model`):

- "llama": SentencePiece's BPE with byte fallback. The file has no merges: every split of a
  token into two others is one, ranked as the tokens are. Tokens rank by score, in Gemma's
  vocabularies by their place, which their scores do not follow. Gemma's files spell runs of
  spaces as spaces; the rules look them up as U+2581.
- "gpt2": byte-level BPE with merges; `tokenizer.ggml.pre` names how text is cut into words.

Control tokens (type 3) become special tokens, user-defined ones (type 4) plain added tokens.

Knows no requests and no templates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.router.text.byte_alphabet import BYTE_OF, spell
from services.router.text.errors import TextModelError

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_SPACE = "\u2581"


@dataclass(frozen=True, slots=True)
class _WordRule:
    """How a byte-level tokenizer cuts text into words before merging."""

    pattern: str | None
    """None: GPT-2's own."""
    whole_words_first: bool = False
    """A word that is a token is taken whole, whatever the merges say."""
    composed: bool = False
    """Text is brought into Unicode's NFC first."""
    adds_bos: bool = False
    """Whether a file that does not say wants its bos token added."""


_LLAMA3 = _WordRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    whole_words_first=True,
    adds_bos=True,
)
_QWEN2 = _WordRule(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    composed=True,
)
_GPT2 = _WordRule(None)
_WORD_RULES = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: list[str]
    types: list[int]
    metadata: dict[str, Any]

    def named(self, key: str) -> str | None:
        """The token that the file's `tokenizer.ggml.<key>_token_id` points at."""
        token_id: int | None = self.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is None:
            return None
        if not 0 <= token_id < len(self.tokens):
            raise TextModelError(
                f"tokenizer.ggml.{key}_token_id is {token_id}, "
                f"and the vocabulary has {len(self.tokens)} tokens"
            )
        return self.tokens[token_id]

    def of_type(self, kind: int) -> list[str]:
        return [token for token, its in zip(self.tokens, self.types, strict=True) if its == kind]


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """A tokenizer as a GGUF file describes it, without a post-processor."""

    tokenizer: Tokenizer
    special_tokens: dict[str, str]
    """By name: bos_token, eos_token, unk_token, pad_token, as far as the file has them."""
    add_bos: bool
    add_eos: bool


def build(metadata: dict[str, Any]) -> GGUFTokenizer:
    """Builds the tokenizer that `metadata` (of `baton.gguf.read_header`) describes.

    Takes a few seconds for 262,144 tokens. Raises TextModelError, which names the entry.
    """
    vocabulary = _vocabulary(metadata)
    kind = metadata["tokenizer.ggml.model"]
    if kind == "llama":
        vocabulary, tokenizer = _sentencepiece(vocabulary)
        add_bos = True
    elif kind == "gpt2":
        rule = _word_rule(metadata.get("tokenizer.ggml.pre", "default"))
        vocabulary, tokenizer = _byte_level(vocabulary, rule)
        add_bos = rule.adds_bos
    else:
        raise TextModelError(
            f"tokenizer.ggml.model is {kind!r}: supported are 'llama' (SentencePiece BPE) "
            "and 'gpt2' (byte-level BPE)"
        )
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special = {f"{short}_token": vocabulary.named(key) for short, key in names.items()}
    known = {name: token for name, token in special.items() if token is not None}
    _add_tokens(tokenizer, vocabulary, known)
    return GGUFTokenizer(
        tokenizer,
        known,
        bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
        bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    )


def _vocabulary(metadata: dict[str, Any]) -> _Vocabulary:
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.tokens"):
        if key not in metadata:
            raise TextModelError(f"has no {key}")
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise TextModelError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        )
    return _Vocabulary(tokens, types, metadata)


def _add_tokens(tokenizer: Tokenizer, vocabulary: _Vocabulary, named: dict[str, str]) -> None:
    special = dict.fromkeys([*vocabulary.of_type(_CONTROL), *named.values()])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=False)
            for token in vocabulary.of_type(_USER_DEFINED)
            if not _is_run_of_spaces(token)
        ]
    )


def _sentencepiece(vocabulary: _Vocabulary) -> tuple[_Vocabulary, Tokenizer]:
    metadata = vocabulary.metadata
    is_gemma = str(metadata.get("general.architecture", "")).startswith("gemma")
    tokens = vocabulary.tokens
    order: Sequence[int] = range(len(tokens))
    if is_gemma:
        tokens = [_SPACE * len(t) if " " in t and not t.strip() else t for t in tokens]
    else:
        scores = metadata.get("tokenizer.ggml.scores", ())
        if len(scores) != len(tokens):
            raise TextModelError(
                f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens"
            )
        order = sorted(order, key=lambda index: -scores[index])
    vocabulary = _Vocabulary(tokens, vocabulary.types, metadata)
    ids = _ids(tokens)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=list(_implied_merges(tokens, order, ids)),
            unk_token=vocabulary.named("unknown"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if is_gemma:
        tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    else:
        prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=_SPACE, prepend_scheme="first" if prefixed else "never", split=False
        )
        if prefixed:
            steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return vocabulary, tokenizer


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


def _word_rule(name: str) -> _WordRule:
    rule = _WORD_RULES.get(name)
    if rule is None:
        raise TextModelError(
            f"tokenizer.ggml.pre is {name!r}: supported are {', '.join(sorted(_WORD_RULES))}"
        )
    return rule


def _byte_level(vocabulary: _Vocabulary, rule: _WordRule) -> tuple[_Vocabulary, Tokenizer]:
    metadata = vocabulary.metadata
    if "tokenizer.ggml.merges" not in metadata:
        raise TextModelError("has no tokenizer.ggml.merges")
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    bad = next((index for index, merge in enumerate(merges) if len(merge) != 2), None)
    if bad is not None:
        raise TextModelError(f"tokenizer.ggml.merges[{bad}] is not two tokens")
    tokens = [
        spell(token) if kind == _NORMAL and not BYTE_OF.keys() >= set(token) else token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    try:
        model = models.BPE(vocab=_ids(tokens), merges=merges, ignore_merges=rule.whole_words_first)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise TextModelError(f"tokenizer.ggml.merges: {error}") from None
    tokenizer = Tokenizer(model)
    if rule.composed:
        tokenizer.normalizer = normalizers.NFC()
    if rule.pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(rule.pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    return _Vocabulary(tokens, vocabulary.types, metadata), tokenizer


def _ids(tokens: list[str]) -> dict[str, int]:
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise TextModelError(f"tokenizer.ggml.tokens has {twice!r} twice")
    return ids


def _is_run_of_spaces(token: str) -> bool:
    return bool(token) and not token.strip(_SPACE)
