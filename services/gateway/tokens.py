"""/v1/tokenize and /v1/detokenize."""

from typing import Any

from baton import events
from baton.client import AsyncClient, Conversation
from services.gateway.caller import Caller
from services.gateway.conversations import CONVERSATION_NAMES, conversation_of
from services.gateway.errors import HttpError, Names
from services.gateway.logprobs import shown
from services.gateway.schemas import DetokenizeRequest, TokenizeRequest

NAMES: Names = (
    *CONVERSATION_NAMES,
    ("text", "prompt"),
    ("token_ids", "tokens"),
)


async def tokenize(
    client: AsyncClient, body: TokenizeRequest, model: events.Model, caller: Caller
) -> dict[str, Any]:
    """The tokens of a prompt or a conversation."""
    special = body.add_special_tokens is not False
    tokens = await client.tokenize(
        _prompt(body), model=model.name, special_tokens=special, metadata=caller.metadata()
    )
    found: dict[str, Any] = {
        "count": len(tokens.ids),
        "max_model_len": model.context_tokens,
        "tokens": list(tokens.ids),
    }
    if body.return_token_strs:
        found["token_strs"] = [shown(text) for text in tokens.texts]
    return found


def _prompt(body: TokenizeRequest) -> str | Conversation:
    if (body.prompt is None) == (body.messages is None):
        raise HttpError(422, "prompt: one of prompt and messages is needed", "invalid", "prompt")
    if body.prompt is not None:
        return body.prompt
    return conversation_of(body.messages or (), body.tools or (), body.chat_template_kwargs)


async def detokenize(
    client: AsyncClient, body: DetokenizeRequest, model: events.Model, caller: Caller
) -> dict[str, Any]:
    """The text of tokens."""
    text = await client.detokenize(body.tokens, model=model.name, metadata=caller.metadata())
    return {"prompt": text}
