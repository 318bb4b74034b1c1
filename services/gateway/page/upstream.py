"""The routers that the page asks. A thin seam over the client, so that the rest can be tested
without one."""

from typing import Protocol

from baton.client import AsyncClient
from baton.v1 import inference_pb2

Key = str
"""An API key; empty where none was given."""
PATIENCE_S = 3.0
"""For each answer. A router waits a second for its workers'."""


class Upstream(Protocol):
    """One router. Every method raises a BatonError: Unauthenticated or PermissionDenied where
    the key is not an operator's, Unavailable or DeadlineExceeded where it does not answer."""

    async def fleet(self, key: Key) -> inference_pb2.GetFleetResponse:
        """The fleet at this moment."""
        ...

    async def requests(
        self, key: Key, after: int, limit: int = 0
    ) -> inference_pb2.ListRequestsResponse:
        """Reports after that number."""
        ...

    async def trace(self, key: Key, request_id: str) -> inference_pb2.GetTraceResponse:
        """The spans of a request. NotFound where no process remembers any."""
        ...


class ClientUpstream:
    """A router behind a client, which its owner closes."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def fleet(self, key: Key) -> inference_pb2.GetFleetResponse:
        """The fleet at this moment."""
        return await self._client.fleet(timeout=PATIENCE_S, metadata=_metadata(key))

    async def requests(
        self, key: Key, after: int, limit: int = 0
    ) -> inference_pb2.ListRequestsResponse:
        """Reports after that number."""
        return await self._client.requests(
            after, limit, timeout=PATIENCE_S, metadata=_metadata(key)
        )

    async def trace(self, key: Key, request_id: str) -> inference_pb2.GetTraceResponse:
        """The spans of a request."""
        return await self._client.trace(request_id, timeout=PATIENCE_S, metadata=_metadata(key))


def _metadata(key: Key) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}
