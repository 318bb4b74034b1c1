"""The POST routes of /v1: each reads its body, and answers with what it asks for."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from baton import errors
from baton.client import AsyncClient
from services.gateway import tokens
from services.gateway.answering import Refused, explained, guarded
from services.gateway.bodies import read_body
from services.gateway.caller import caller_of
from services.gateway.chat import Chat
from services.gateway.completions import Completion
from services.gateway.errors import problem_of
from services.gateway.gone import unless_gone
from services.gateway.openapi import documented
from services.gateway.options import check_fields
from services.gateway.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from services.gateway.served import Served
from services.gateway.sse import streamed

_WRONG_SHAPE = 422


@dataclass(frozen=True, slots=True)
class Backend:
    """What the routes work with."""

    client: AsyncClient
    served: Served
    max_body_bytes: int


def routes(backend: Backend) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1")
    _add_generations(router, backend)
    _add_tokens(router, backend)
    return router


def _add_generations(router: APIRouter, backend: Backend) -> None:
    @router.post("/completions", tags=["completions"], **documented("CompletionRequest"))
    async def create_completion(request: Request) -> Response:
        """Continues one or several prompts."""
        body = await read_body(request, CompletionRequest, backend.max_body_bytes)
        caller = caller_of(request)
        model = await backend.served.named(body.model, caller.metadata())
        return await _generated(request, Completion(backend.client, body, model.name, caller), body)

    @router.post("/chat/completions", tags=["chat"], **documented("ChatRequest"))
    async def create_chat_completion(request: Request) -> Response:
        """The assistant's next message in a conversation."""
        body = await read_body(request, ChatRequest, backend.max_body_bytes)
        caller = caller_of(request)
        model = await backend.served.named(body.model, caller.metadata())
        return await _generated(request, Chat(backend.client, body, model, caller), body)


async def _generated(
    request: Request, work: Completion | Chat, body: CompletionRequest | ChatRequest
) -> Response:
    if body.stream:
        return await streamed(request.receive, guarded(work.chunks()), {})
    answer = await unless_gone(request.receive, work.answer())
    return JSONResponse(answer, headers=explained(work.explanations))


def _add_tokens(router: APIRouter, backend: Backend) -> None:
    limit = backend.max_body_bytes

    @router.post("/tokenize", tags=["tokens"], **documented("TokenizeRequest", _WRONG_SHAPE))
    async def tokenize(request: Request) -> Response:
        """A prompt or a conversation as tokens."""
        body = await read_body(request, TokenizeRequest, limit, _WRONG_SHAPE)
        check_fields(body)
        caller = caller_of(request)
        model = await backend.served.named(body.model, caller.metadata())
        return await _told(tokens.tokenize(backend.client, body, model, caller))

    @router.post("/detokenize", tags=["tokens"], **documented("DetokenizeRequest", _WRONG_SHAPE))
    async def detokenize(request: Request) -> Response:
        """Tokens as text."""
        body = await read_body(request, DetokenizeRequest, limit, _WRONG_SHAPE)
        check_fields(body)
        caller = caller_of(request)
        model = await backend.served.named(body.model, caller.metadata())
        return await _told(tokens.detokenize(backend.client, body, model, caller))


async def _told(work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    try:
        return JSONResponse(await work)
    except errors.BatonError as error:
        raise Refused(problem_of(error, tokens.NAMES)) from error
