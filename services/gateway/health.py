"""/health and /ready: whether the process lives, and whether requests can be served."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from baton import errors
from baton.client import AsyncClient
from services.common.gate import Gate
from services.gateway.answers import Status
from services.gateway.openapi import answered

_READY_S = 2.0
_LATER = {"retry-after": "1"}
_KEYS = (errors.Unauthenticated, errors.PermissionDenied)


def routes(client: AsyncClient, gate: Gate) -> APIRouter:
    """The routes of both."""
    router = APIRouter(tags=["health"])
    described = answered(Status)
    stopping: dict[int | str, dict[str, Any]] = {
        503: {**described[200], "description": "No router answers, or it stops."}
    }

    @router.head("/health", include_in_schema=False)
    @router.get("/health", responses=described)
    async def health() -> Response:
        """Whether the process lives."""
        return JSONResponse({"status": "ok"})

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", responses={**described, **stopping})
    async def ready() -> Response:
        """Whether a router answers, and the gateway is not about to stop."""
        if not gate.open:
            return JSONResponse({"status": "stopping"}, 503, _LATER)
        try:
            await client.model(timeout=_READY_S)
        except _KEYS:  # it asks for a key, so it answers
            pass
        except errors.BatonError as error:
            return JSONResponse({"status": "no router", "message": error.message}, 503, _LATER)
        return JSONResponse({"status": "ready"})

    return router
