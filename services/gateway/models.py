"""/v1/models: the model that is served."""

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from baton import events
from services.gateway.answers import ModelAnswer, ModelList
from services.gateway.caller import caller_of
from services.gateway.openapi import answered, errors_of
from services.gateway.served import Served

_STARTED = int(time.time())
_ERRORS = (400, 401, 403, 500, 503, 504)


def routes(served: Served) -> APIRouter:
    """The routes of the list and of each model."""
    router = APIRouter(prefix="/v1", tags=["models"])

    @router.get("/models", responses={**answered(ModelList), **errors_of(*_ERRORS)})
    async def list_models(request: Request) -> Response:
        """The models that are served: one."""
        model = await served.model(caller_of(request).metadata())
        return JSONResponse({"object": "list", "data": [_entry(model)]})

    @router.get(
        "/models/{name:path}", responses={**answered(ModelAnswer), **errors_of(404, *_ERRORS)}
    )
    async def get_model(name: str, request: Request) -> Response:
        """One model."""
        return JSONResponse(_entry(await served.named(name, caller_of(request).metadata())))

    return router


def _entry(model: events.Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "baton",
        "max_model_len": model.context_tokens,
    }
