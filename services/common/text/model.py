"""A model's tokenizer and chat template, wherever they were read from.

Knows no requests and no limits; `Detokenizer` and `ChatTemplate` do the work.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer, processors

from baton import gguf
from baton.errors import InvalidRequest
from services.common.text import gguf_tokenizer, huggingface, sampling_defaults, template_files
from services.common.text.conversation import Conversation
from services.common.text.detokenizer import Detokenizer, detokenizer
from services.common.text.errors import TextModelError
from services.common.text.pieces import Pieces
from services.common.text.sampling_defaults import SamplingDefaults
from services.common.text.template import ChatTemplate
from services.common.text.tool_format import ToolFormat

_MOST_COMPOSED = 4
"""Unicode normalization makes at most this many characters one."""
_KEEPS_LENGTH = ("Replace", "Prepend")


class TextModel:
    """A model's tokenizer and chat template. Immutable; may be used from any thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        special_tokens: Mapping[str, str],
        chat_template: str | None = None,
        default_sampling: SamplingDefaults = SamplingDefaults(),  # noqa: B008 - frozen
    ) -> None:
        """`special_tokens` by name, such as bos_token.

        Raises TextModelError where the tokenizer's decoder is not supported.
        """
        self.default_sampling = default_sampling
        """What the model recommends where a request does not say."""
        self._tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self._template: ChatTemplate | None = None
        if chat_template is not None:
            self._template = ChatTemplate(chat_template, special_tokens)
        added = tokenizer.get_added_tokens_decoder()
        self._pieces = Pieces(
            tokenizer, skipped={index for index, token in added.items() if token.special}
        )
        longest = max(map(len, tokenizer.get_vocab()), default=1)
        self._characters_a_token = longest * _most_composed(tokenizer)

    @classmethod
    def load(cls, path: Path, chat_template: Path | None = None) -> "TextModel":
        """Loads from a Hugging Face directory (tokenizer.json or tokenizer.model)
        or a GGUF file; `chat_template` is a file to take instead of the model's template.

        Takes up to a few seconds. Raises TextModelError, which names the file.
        """
        if path.is_dir():
            model = cls._from_directory(path)
        elif not path.is_file():
            raise TextModelError(f"{path} does not exist")
        elif not gguf.is_gguf(path):
            raise TextModelError(f"{path} is neither a directory nor a GGUF file")
        else:
            model = cls._from_gguf(path)
        if chat_template is not None:
            model._take_template(chat_template)
        return model

    def _take_template(self, path: Path) -> None:
        template = ChatTemplate(template_files.text_of(path), self._special_tokens)
        if template.fault:
            raise TextModelError(f"{path}: the chat template {template.fault}")
        self._template = template

    @classmethod
    def _from_directory(cls, path: Path) -> "TextModel":
        found = huggingface.read(path)
        try:
            if found.add_bos is not None:
                _add_ends(found.tokenizer, found.special_tokens, found.add_bos, bool(found.add_eos))
            return cls(
                found.tokenizer,
                found.special_tokens,
                found.chat_template,
                sampling_defaults.of_directory(path, found.tokenizer.get_vocab_size()),
            )
        except TextModelError as error:
            raise TextModelError(f"{found.path}: {error}") from None

    @classmethod
    def _from_gguf(cls, path: Path) -> "TextModel":
        try:
            metadata = gguf.read_header(path).metadata
            found = gguf_tokenizer.build(metadata)
        except gguf.GGUFError as error:
            raise TextModelError(str(error)) from None
        except TextModelError as error:
            raise TextModelError(f"{path}: {error}") from None
        _add_ends(found.tokenizer, found.special_tokens, found.add_bos, found.add_eos)
        return cls(
            found.tokenizer,
            found.special_tokens,
            template_files.of_gguf(metadata),
            sampling_defaults.of_gguf(metadata, path, found.tokenizer.get_vocab_size()),
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template; without one `encode_chat` refuses."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with special tokens as the model's tokenizer adds them.

        The text of a special token becomes that token. Releases the interpreter lock; run it
        in a thread where the text is long.
        """
        return self._encode(text, add_special_tokens=True)

    @property
    def tool_format(self) -> ToolFormat:
        """How the model calls functions, as far as its chat template tells."""
        return ToolFormat.NONE if self._template is None else self._template.tool_format

    def render_chat(self, conversation: Conversation) -> str:
        """The conversation as the template writes it, ready for an answer.

        Raises InvalidRequest, "chat" or a part of it, where there is no template or the template
        refuses.
        """
        if self._template is None:
            raise InvalidRequest(
                "chat",
                "the model has no chat template: send text or token ids, or start the router "
                "with --chat-template FILE",
                reason="NO_CHAT_TEMPLATE",
            )
        return self._template.render(conversation)

    def encode_chat(self, conversation: Conversation) -> list[int]:
        """Token ids of `render_chat`; no special tokens but those that the template writes.

        Raises as `render_chat` does. Run it in a thread where the messages are long.
        """
        return self._encode(self.render_chat(conversation), add_special_tokens=False)

    def encode_piece(self, text: str) -> list[int]:
        """Token ids of `text` as a part of an output: no special tokens are added."""
        return self._encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` at once, special tokens skipped."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def detokenizer(self, prompt_ids: Sequence[int]) -> Detokenizer:
        """A new stream's detokenizer; what it returns continues the prompt."""
        return detokenizer(self._pieces, prompt_ids)

    def token_text(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text that has begun; of a special token its name.

        Empty for ids that no token has.
        """
        piece = self._pieces.of(token_id)
        if piece is None:
            piece = self._tokenizer.id_to_token(token_id) or ""
        return piece if isinstance(piece, bytes) else piece.encode("utf-8")

    def max_characters(self, context_tokens: int) -> int:
        """How long a text may be to be worth tokenizing for `context_tokens`.

        No longer text has few enough tokens, even if all were the vocabulary's longest.
        (Characters count that a tokenizer drops or takes together as one unknown token.)
        """
        return context_tokens * self._characters_a_token

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # `encode` would hold the interpreter lock; the batch call does not.
        [encoding] = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=add_special_tokens
        )
        return list(encoding.ids)


def _add_ends(
    tokenizer: Tokenizer, special_tokens: Mapping[str, str], add_bos: bool, add_eos: bool
) -> None:
    """Makes `tokenizer` add bos and eos as told. Raises TextModelError where one is no token."""
    bos = special_tokens.get("bos_token") if add_bos else None
    eos = special_tokens.get("eos_token") if add_eos else None
    ends = {text: tokenizer.token_to_id(text) for text in (bos, eos) if text is not None}
    for text, token_id in ends.items():
        if token_id is None:
            raise TextModelError(f"{text!r}, which begins or ends texts, is not in the vocabulary")
    pattern = ["$A", *([eos] if eos is not None else [])]
    if bos is not None:
        pattern.insert(0, bos)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=pattern, special_tokens=list(ends.items())
    )


def _most_composed(tokenizer: Tokenizer) -> int:
    """How many characters of text the tokenizer's normalizer may make one."""
    if tokenizer.normalizer is None:
        return 1
    config = json.loads(tokenizer.normalizer.__getstate__())
    steps = config.get("normalizers", [config])
    return 1 if all(step["type"] in _KEEPS_LENGTH for step in steps) else _MOST_COMPOSED
