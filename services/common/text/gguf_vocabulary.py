"""The vocabulary that a GGUF file holds: tokens, their types, and which of them are special.

Knows no rules of tokenizing (`gguf_tokenizer`).
"""

from dataclasses import dataclass
from typing import Any

from services.common.text.errors import TextModelError

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
_NAMES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "pad": "padding",
    "sep": "seperator",  # spelled so in the format
    "cls": "cls",
    "mask": "mask",
}
_UNNAMED = ("eot", "eom")
"""Special tokens that no template has a variable for."""


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """Tokens by id, with a type each."""

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
        """The tokens of a type, by id."""
        return [token for token, its in zip(self.tokens, self.types, strict=True) if its == kind]

    def special_names(self) -> dict[str, str]:
        """Special tokens by name, such as bos_token, as far as the file has them.

        Raises TextModelError where one is no token.
        """
        found = {f"{short}_token": self.named(key) for short, key in _NAMES.items()}
        return {name: token for name, token in found.items() if token is not None}

    def special(self) -> list[str]:
        """Every special token: those of the control type, and those that the file names."""
        unnamed = [token for key in _UNNAMED if (token := self.named(key)) is not None]
        return [*self.of_type(CONTROL), *self.special_names().values(), *unnamed]


def read(metadata: dict[str, Any]) -> GGUFVocabulary:
    """The vocabulary in `metadata` (of `baton.gguf.read_header`).

    Raises TextModelError, which names the entry.
    """
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.tokens"):
        if key not in metadata:
            raise TextModelError(f"has no {key}")
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise TextModelError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        )
    return GGUFVocabulary(tokens, types, metadata)
