"""The app: every route, and what surrounds them all. Wires and nothing else."""

import logging

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from baton import __version__, errors
from baton.client import AsyncClient
from services.common.gate import Gate
from services.gateway import api, health, models
from services.gateway.answering import Refused
from services.gateway.doorway import Doorway
from services.gateway.errors import HttpError, Problem, problem_of, problem_of_http
from services.gateway.openapi import describe
from services.gateway.served import Served
from services.gateway.settings import GatewaySettings

log = logging.getLogger("services.gateway")


def make_app(client: AsyncClient, settings: GatewaySettings, gate: Gate) -> FastAPI:
    """The gateway's app; `client`'s routers do the work, and its owner closes it. What is in
    progress is inside `gate`."""
    app = FastAPI(title="Baton", version=__version__, docs_url=None, redoc_url=None)
    served = Served(client, settings.router_wait_s)
    app.include_router(health.routes(client, gate))
    app.include_router(models.routes(served))
    app.include_router(api.routes(api.Backend(client, served, settings.max_body_bytes)))
    _handle_errors(app)
    describe(app)
    app.add_middleware(Doorway, gate=gate)
    return app


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(errors.BatonError)
    async def of_routers(_request: Request, error: errors.BatonError) -> Response:
        if isinstance(error, errors.InternalError):
            log.error("a router failed: %s", error.message)
        return _answer(problem_of(error))

    @app.exception_handler(Refused)
    async def of_bodies(_request: Request, error: Refused) -> Response:
        return _answer(error.problem)

    @app.exception_handler(HttpError)
    async def of_http(_request: Request, error: HttpError) -> Response:
        return _answer(problem_of_http(error))

    @app.exception_handler(HTTPException)
    async def of_routing(_request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        problem = problem_of_http(HttpError(error.status_code, str(error.detail), code))
        return JSONResponse(problem.body(), problem.status, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def of_ours(_request: Request, error: Exception) -> Response:
        return _answer(problem_of(errors.InternalError(type(error).__name__)))


def _answer(problem: Problem) -> Response:
    return JSONResponse(problem.body(), problem.status, problem.headers())
