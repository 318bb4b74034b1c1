"""Reads tokenizer and chat template of a Hugging Face directory.

tokenizer.json holds the tokenizer whole; where there is none, it is built from SentencePiece's
tokenizer.model. tokenizer_config.json and special_tokens_map.json add the names of special
tokens, tokens added later (added_tokens.json in older directories), and whether bos and eos
are added. add_bos_token and add_eos_token count wherever they are set: they are the word of
the model's makers, and a tokenizer.json that disagrees is one that they did not save again.

What is not taken up: `clean_up_tokenization_spaces`, which would change text that has been
streamed already, and names for tokens that no vocabulary has.

Knows no requests; what the template means is `template`'s.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from services.common.text import sentencepiece, sentencepiece_file, template_files
from services.common.text.errors import TextModelError
from services.common.text.huggingface_config import (
    extra_tokens,
    listed_tokens,
    named_tokens,
    read_config,
)

_OTHER_FILES = ("tekken.json", "tiktoken.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class HuggingFaceTokenizer:
    """A tokenizer as a directory describes it."""

    path: Path
    """The file that it was read from."""
    tokenizer: Tokenizer
    special_tokens: dict[str, str]
    """By name, such as bos_token."""
    add_bos: bool | None
    """None: the tokenizer's own post-processor decides about bos and eos."""
    add_eos: bool | None
    chat_template: str | None


def read(directory: Path) -> HuggingFaceTokenizer:
    """Reads `directory`. Raises TextModelError, which names the file."""
    config = read_config(directory)
    path, tokenizer, named = _tokenizer(directory, config)
    special = named | dict(named_tokens(config))
    _add_later(tokenizer, directory, config)
    try:
        extra = extra_tokens(config)
    except TextModelError as error:
        raise TextModelError(f"{directory}: {error}") from None
    _mark_special(tokenizer, [*special.values(), *extra])
    flags = [config.get("add_bos_token"), config.get("add_eos_token")]
    explicit = tokenizer.post_processor is None or flags != [None, None]
    return HuggingFaceTokenizer(
        path,
        tokenizer,
        special,
        bool(flags[0]) if explicit else None,
        bool(flags[1]) if explicit else None,
        template_files.of_directory(directory, config.get("chat_template")),
    )


def _tokenizer(directory: Path, config: dict[str, Any]) -> tuple[Path, Tokenizer, dict[str, str]]:
    """Its file, the tokenizer, and the special tokens that the file names."""
    path = directory / "tokenizer.json"
    if path.is_file():
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise TextModelError(f"{path}: {error}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return path, tokenizer, {}
    path = directory / "tokenizer.model"
    if path.is_file():
        legacy = config.get("legacy", "Llama" not in str(config.get("tokenizer_class")))
        found = sentencepiece_file.read(path, prefix_every_part=bool(legacy))
        try:
            tokenizer = sentencepiece.build(found.model)
        except TextModelError as error:
            raise TextModelError(f"{path}: {error}") from None
        _mark_special(tokenizer, found.special())
        return path, tokenizer, found.special_tokens
    others = [name for name in _OTHER_FILES if (directory / name).exists()]
    raise TextModelError(
        f"{directory} has no tokenizer.json and no tokenizer.model"
        + (f"; {' and '.join(others)} can't be read: convert to tokenizer.json" if others else "")
    )


def _add_later(tokenizer: Tokenizer, directory: Path, config: dict[str, Any]) -> None:
    """Adds the tokens that the configuration lists, or sets them as it says."""
    known = tokenizer.get_added_tokens_decoder()
    for index, token in sorted(listed_tokens(directory, config).items()):
        if index in known:
            if known[index].content == token.content and known[index].special:
                token.special = True
            if repr(known[index]) == repr(token):
                continue
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != index:
            raise TextModelError(
                f"{directory}: the added token {token.content!r} should have id {index}, "
                f"and the tokenizer gives it {tokenizer.token_to_id(token.content)}"
            )


def _mark_special(tokenizer: Tokenizer, tokens: list[str]) -> None:
    added = tokenizer.get_added_tokens_decoder()
    already = {token.content for token in added.values() if token.special}
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token in dict.fromkeys(tokens)
            if token not in already and tokenizer.token_to_id(token) is not None
        ]
    )
