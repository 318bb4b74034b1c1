"""HTTP of the page: its files at `/ui/`, and what it polls at `/ui/data/`.

Files need no key, since they hold nothing; data need an operator's where routers ask for keys.
"""

import re
from collections.abc import Awaitable, Mapping
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from baton.errors import BatonError
from baton.keys import bearer_of
from baton.tls import is_loopback
from services.gateway.errors import problem_of
from services.gateway.page.files import INDEX, File, page_files
from services.gateway.page.rows import Row
from services.gateway.page.upstream import Key
from services.gateway.page.watch import Watch

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LARGEST = 2**53


def ui_wanted(mode: str, address: str) -> bool:
    """Whether to serve the page at `address` (host:port): `on`, `off`, or `auto`, which is where
    only this machine can reach it."""
    return mode == "on" or (mode == "auto" and is_loopback(address))


def add_ui(app: FastAPI, watch: Watch) -> None:
    """Serves the page. `watch` is closed by its owner."""
    app.include_router(_page(page_files()))
    app.include_router(_data(watch))


def _page(files: Mapping[str, File]) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.api_route("/ui", methods=["GET", "HEAD"])
    async def slash() -> Response:
        """Relative, so that the page works behind a proxy that adds a path."""
        return RedirectResponse("ui/", status_code=308)

    @router.api_route("/ui/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        return _file(files[INDEX], request)

    @router.api_route("/ui/{name}", methods=["GET", "HEAD"])
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            return _refused(404, "NOT_FOUND", "there is no such file")
        return _file(files[name], request)

    return router


def _data(watch: Watch) -> APIRouter:
    router = APIRouter(prefix="/ui/data", include_in_schema=False)

    @router.get("/live")
    async def live(
        request: Request, after: Annotated[int, Query(ge=0, le=_LARGEST)] = 0
    ) -> Response:
        """Everything that the page shows, and the requests after that number."""
        return await _answer(watch.live(_key(request), after))

    @router.get("/trace/{request_id}")
    async def trace(request_id: str, request: Request) -> Response:
        """The spans of one request."""
        if not _REQUEST_ID.fullmatch(request_id):
            return _refused(400, "INVALID_REQUEST", "request_id: is not an id of a request")
        return await _answer(watch.trace(_key(request), request_id))

    return router


def _key(request: Request) -> Key:
    return bearer_of(request.headers.get("authorization", ""))


async def _answer(work: Awaitable[Row]) -> Response:
    try:
        body = await work
    except BatonError as error:
        return _refused(problem_of(error).status, error.reason, error.message)
    return JSONResponse(body, headers={**_HEADERS, "cache-control": "no-store"})


def _refused(status: int, reason: str, message: str) -> Response:
    headers = {**_HEADERS, "cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"error": {"reason": reason, "message": message}}, status, headers)


def _file(file: File, request: Request) -> Response:
    headers = {**_HEADERS, "cache-control": "no-cache", "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)
