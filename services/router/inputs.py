"""Checks what is to be continued, and the model that is to do it. Errors name the field.

Knows no protobuf types and no tokenizer.
"""

from baton.errors import InvalidRequest, NotFound
from services.common.text import Conversation
from services.router.chat import check_chat
from services.router.request import (
    ChatPrompt,
    CheckedPrompt,
    ModelLimits,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from services.router.sampling import check_vocabulary
from services.router.text_fields import check_characters, check_unicode

_SHOWN_CHARACTERS = 80


def check_model(name: str, limits: ModelLimits) -> None:
    """Raises NotFound where `name`, which may be empty, is not the served model's."""
    if name in ("", limits.name):
        return
    cut = len(name) > _SHOWN_CHARACTERS
    shown = f"{name[:_SHOWN_CHARACTERS]!r}..." if cut else repr(name)
    raise NotFound(
        f"model: {shown} is not served here; {limits.name!r} is",
        reason="UNKNOWN_MODEL",
        field="model",
    )


def check_input(prompt: Prompt | None, limits: ModelLimits) -> CheckedPrompt:
    """The prompt, its JSON texts made objects. Raises InvalidRequest, which names the field."""
    match prompt:
        case None:
            raise InvalidRequest("input", "none of text, chat and token_ids is set")
        case TextPrompt(text):
            if not text:
                raise InvalidRequest("text", "is empty")
            check_text(text, limits)
        case ChatPrompt():
            return check_chat(prompt, limits)
        case TokenPrompt(ids):
            _check_ids(ids, limits)
    return prompt


def check_text(text: str, limits: ModelLimits) -> None:
    """Raises InvalidRequest where the text, which may be empty, is too long or is none."""
    check_characters("text", len(text), limits)
    check_unicode("text", text)


def prompt_field(prompt: CheckedPrompt) -> str:
    """Name of the request's field that holds `prompt`."""
    match prompt:
        case TextPrompt():
            return "text"
        case Conversation():
            return "chat"
        case TokenPrompt():
            return "token_ids"


def _check_ids(ids: tuple[int, ...], limits: ModelLimits) -> None:
    if not ids:
        raise InvalidRequest("token_ids", "is empty")
    if len(ids) >= limits.context_tokens:
        raise InvalidRequest(
            "token_ids",
            f"{len(ids)} tokens are too long a prompt: the context has {limits.context_tokens} "
            "tokens, and at least one must be left for the output",
        )
    check_vocabulary("token_ids.ids", ids, limits)
