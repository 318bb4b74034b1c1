"""The bytes of every token id: what holds an output to a grammar works on them.

What a token adds to a text depends on its place only in tokenizers that put a space before a
text: there the very first token loses it. An output follows a prompt, so its tokens are never
first: `token_bytes` are what they add there, and SentencePiece's U+2581 is always a space.

Reads files without building a tokenizer: workers need no more of a model's text than this.
Knows no grammar and no template.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from baton import gguf
from services.common.text import byte_alphabet, gguf_vocabulary, huggingface_vocabulary
from services.common.text.errors import TextModelError
from services.common.text.pieces import DecoderRule, text_or_byte
from services.common.text.sentencepiece import SPACE

_OF_WORDS = DecoderRule(byte_level=True)
_OF_PIECES = DecoderRule(replacements=((SPACE, " "),), byte_fallback=True)
_OF_WHOLE_PIECES = DecoderRule(replacements=((SPACE, " "),))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every token of a model. Immutable."""

    token_bytes: Sequence[bytes]
    """By id, what each adds to a text that has begun. Empty for special tokens, and for ids
    that no token has."""
    special: Mapping[int, str]
    """Names of the special tokens by id; they add nothing to a text."""

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Reads it from a Hugging Face directory (tokenizer.json or tokenizer.model) or a GGUF
        file, as `TextModel.load` does.

        Takes up to a second for 262,144 tokens. Raises TextModelError, which names the file.
        """
        if path.is_dir():
            found = huggingface_vocabulary.read(path)
            return _vocabulary(found.texts, found.special, found.rule)
        try:
            return _of_gguf(gguf.read_header(path).metadata)
        except (OSError, gguf.GGUFError) as error:
            raise TextModelError(str(error)) from None
        except TextModelError as error:
            raise TextModelError(f"{path}: {error}") from None


def _of_gguf(metadata: dict[str, Any]) -> Vocabulary:
    found = gguf_vocabulary.read(metadata)
    kind = metadata["tokenizer.ggml.model"]
    if kind == "gpt2":
        rule = _OF_WORDS
    elif kind == "llama" or gguf_vocabulary.BYTE in found.types:
        rule = _OF_PIECES
    else:
        rule = _OF_WHOLE_PIECES
    names = set(found.special())
    special = {index for index, token in enumerate(found.tokens) if token in names}
    return _vocabulary(dict(enumerate(found.tokens)), special, rule)


def _vocabulary(
    texts: Mapping[int, str], special: Collection[int], rule: DecoderRule
) -> Vocabulary:
    token_bytes = [b""] * (max(texts, default=-1) + 1)
    convert = _byte_level if rule.byte_level else partial(_others, rule)
    plain = [index for index in texts if index not in special]
    for index, data in zip(plain, convert([texts[index] for index in plain]), strict=True):
        token_bytes[index] = data
    return Vocabulary(tuple(token_bytes), {index: texts[index] for index in sorted(special)})


def _byte_level(tokens: Iterable[str]) -> Iterable[bytes]:
    return map(byte_alphabet.read, tokens)


def _others(rule: DecoderRule, tokens: Iterable[str]) -> Iterable[bytes]:
    for token in tokens:
        piece = text_or_byte(rule, token)
        yield piece if isinstance(piece, bytes) else piece.encode("utf-8")
