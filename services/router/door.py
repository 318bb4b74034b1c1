"""Who may call the router, and how much: an API key is looked for in each call's metadata, where
keys are used, and a request is held to its tenant's limits.

`authorization: Bearer KEY`. Health checks and reflection need none. What a tenant does needs a key
of any tenant; all else, such as looking at the fleet, an operator's: a method that is added is
closed until it is opened here. Whether a key exists can't be told from the errors.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc

from baton import errors
from baton.keys import Owner, bearer_of
from services.router.keys import Keys
from services.router.tenants import Tenants
from services.router.validation import RequestFields

_METHODS = "/baton.v1.InferenceService/"
TENANT_METHODS = frozenset(
    _METHODS + name for name in ("Generate", "GetModel", "Tokenize", "Detokenize")
)
_OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/")

Metadata = Iterable[tuple[str, str | bytes]]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class Door(grpc.aio.ServerInterceptor):
    """Lets calls in whose key allows them; all of them where no keys are used."""

    def __init__(self, keys: Keys | None = None, tenants: Tenants | None = None) -> None:
        self._keys = keys or Keys("")
        self._tenants = tenants

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The method's handler, or one that refuses."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or not self._keys.required:
            return handler
        try:
            self.check(handler_call_details.method, handler_call_details.invocation_metadata)
        except errors.BatonError as error:
            return _refusing(handler, error)
        return handler

    def check(self, method: str, metadata: Metadata) -> None:
        """Raises Unauthenticated without a key that is known, PermissionDenied where it does not
        allow the method."""
        if method.startswith(_OPEN_SERVICES):
            return
        owner = self._owner(metadata)
        if method not in TENANT_METHODS and not owner.operator:
            raise errors.PermissionDenied(
                f"{method.rpartition('/')[2]} needs an operator's API key", reason="NOT_OPERATOR"
            )

    @asynccontextmanager
    async def admitted(
        self, fields: RequestFields, metadata: Metadata | None
    ) -> AsyncIterator[RequestFields]:
        """The request with its key's tenant runs inside the block. Raises Unauthenticated,
        PermissionDenied, or Exhausted at its tenant's limits."""
        claimed = self.claimed(fields, metadata)
        if self._tenants is None:
            yield claimed
            return
        async with self._tenants.stream(claimed.tenant):
            yield claimed

    def claimed(self, fields: RequestFields, metadata: Metadata | None) -> RequestFields:
        """The request with its key's tenant. Raises PermissionDenied where it names another."""
        if not self._keys.required:
            return fields
        owner = self._owner(metadata or ())
        if fields.tenant not in ("", owner.tenant):
            raise errors.PermissionDenied(
                "tenant: the API key is another tenant's", reason="WRONG_TENANT", field="tenant"
            )
        return replace(fields, tenant=owner.tenant)

    def _owner(self, metadata: Metadata) -> Owner:
        owner = self._keys.owner(_bearer(metadata))
        if owner is None:
            raise errors.Unauthenticated(
                "a valid API key is needed, as metadata `authorization: Bearer KEY`"
            )
        return owner


def _bearer(metadata: Metadata) -> str:
    """The key that came with a call; empty: none, or more than one."""
    given = [value for name, value in metadata if name == "authorization"]
    if len(given) != 1 or not isinstance(given[0], str):
        return ""
    return bearer_of(given[0])


def _refusing(handler: Any, error: errors.BatonError) -> Any:
    """A handler as `handler` that raises `error`; None, as if there were no such method, where
    clients stream."""

    nothing: tuple[Any, ...] = ()

    async def refuse(_request: Any, _context: Any) -> Any:
        raise error

    async def refuse_stream(_request: Any, _context: Any) -> AsyncGenerator[Any, None]:
        for message in nothing:
            yield message
        raise error

    if handler.request_streaming:
        return None
    make: Any = grpc.unary_unary_rpc_method_handler
    behaviour: Any = refuse
    if handler.response_streaming:
        make, behaviour = grpc.unary_stream_rpc_method_handler, refuse_stream
    return make(behaviour, handler.request_deserializer, handler.response_serializer)
