"""The client for asyncio; `baton.client` has it."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
import grpc.aio

from baton import events
from baton._answers import to_model, to_tokens
from baton._calls import DEFAULT_ADDRESS, to_error
from baton._checks import to_timeout
from baton._convert import GenerateOptions, to_request
from baton._prompt import to_detokenize_request, to_tokenize_request
from baton._received import Received
from baton._streams import AsyncStream
from baton.prompts import ChatMessage, Conversation, Prompt
from baton.tls import Access, Tls
from baton.v1 import inference_pb2, inference_pb2_grpc

_STATUS_TIMEOUT = 30.0
_Answer = TypeVar("_Answer")
Metadata = Mapping[str, str] | None
"""Sent with a call, under lower-case names."""


class AsyncClient:
    """A client for asyncio, for one event loop; not thread-safe.

    `address` is host:port, several IP addresses with ports by comma, or any gRPC target; of
    several, calls use each in turn. Connects when first used, and again after a connection broke.
    `timeout` is the deadline in seconds of generations that set none; None: they may take as long
    as they take.

    `api_key` goes with every call; in plain text only to this machine, unless `insecure`. `tls`:
    calls go over TLS.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout: float | None = None,
        api_key: str | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
    ) -> None:
        self.address = address
        self._timeout = to_timeout(timeout)
        self._access = Access.of(address, api_key, tls, insecure)
        self._channel: grpc.aio.Channel | None = None

    def _stub(self) -> "inference_pb2_grpc.InferenceServiceAsyncStub":
        if self._channel is None:
            self._channel = self._access.aio_channel()
        return inference_pb2_grpc.InferenceServiceStub(self._channel)

    async def _ask(
        self, method: Any, request: Any, timeout: float, metadata: Metadata, _kind: type[_Answer]
    ) -> _Answer:
        try:
            answer: _Answer = await method(
                request, timeout=timeout, metadata=self._access.metadata(metadata)
            )
        except grpc.RpcError as error:
            raise to_error(error, self.address) from error
        return answer

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """Starts a generation. Closing the stream, or dropping it, cancels it at once."""
        request = to_request(prompt, options)
        timeout = to_timeout(options.get("timeout"))
        call = self._stub().Generate(
            request,
            timeout=self._timeout if timeout is None else timeout,
            metadata=self._access.metadata(options.get("metadata")),
        )
        return AsyncStream(call, self.address, Received(request))

    async def complete(
        self, prompt: Prompt, **options: Unpack[GenerateOptions]
    ) -> events.Completion:
        """Generates and returns the whole output."""
        collector = events.Collector()
        async with self.generate(prompt, **options) as stream:
            async for event in stream:
                collector.add(event)
        return collector.result()

    async def tokenize(
        self,
        prompt: str | Conversation | Sequence[ChatMessage],
        *,
        model: str = "",
        special_tokens: bool = True,
        timeout: float = _STATUS_TIMEOUT,
        metadata: Metadata = None,
    ) -> events.Tokens:
        """A text or a conversation as the tokens that `generate` would make of it.

        `special_tokens`: with those that it adds to a text.
        """
        request = to_tokenize_request(prompt, model, special_tokens)
        kind = inference_pb2.TokenizeResponse
        method = self._stub().Tokenize
        return to_tokens(await self._ask(method, request, timeout, metadata, kind))

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str = "",
        timeout: float = _STATUS_TIMEOUT,
        metadata: Metadata = None,
    ) -> str:
        """Tokens as text, special tokens left out."""
        request = to_detokenize_request(token_ids, model)
        kind = inference_pb2.DetokenizeResponse
        method = self._stub().Detokenize
        return (await self._ask(method, request, timeout, metadata, kind)).text

    async def model(
        self, *, timeout: float = _STATUS_TIMEOUT, metadata: Metadata = None
    ) -> events.Model:
        """The model that is served, and its limits."""
        request, kind = inference_pb2.GetModelRequest(), inference_pb2.GetModelResponse
        method = self._stub().GetModel
        return to_model(await self._ask(method, request, timeout, metadata, kind))

    async def fleet(
        self,
        *,
        check_integrity: bool = False,
        timeout: float = _STATUS_TIMEOUT,
        metadata: Metadata = None,
    ) -> inference_pb2.GetFleetResponse:
        """Every process, the queue and the work done, as the wire has it (inference.proto)."""
        request = inference_pb2.GetFleetRequest(check_integrity=check_integrity)
        kind = inference_pb2.GetFleetResponse
        return await self._ask(self._stub().GetFleet, request, timeout, metadata, kind)

    async def requests(
        self,
        after: int = 0,
        limit: int = 0,
        *,
        timeout: float = _STATUS_TIMEOUT,
        metadata: Metadata = None,
    ) -> inference_pb2.ListRequestsResponse:
        """Reports of the requests that ended lately at this router, the oldest first: the newest
        `limit` (0: all that it remembers) of those that came after number `after`."""
        request = inference_pb2.ListRequestsRequest(after=after, limit=limit)
        kind = inference_pb2.ListRequestsResponse
        return await self._ask(self._stub().ListRequests, request, timeout, metadata, kind)

    async def trace(
        self,
        request_or_trace_id: str,
        *,
        timeout: float = _STATUS_TIMEOUT,
        metadata: Metadata = None,
    ) -> inference_pb2.GetTraceResponse:
        """The spans of one request, over all processes. Raises NotFound where none knows any."""
        request = inference_pb2.GetTraceRequest(id=request_or_trace_id)
        kind = inference_pb2.GetTraceResponse
        return await self._ask(self._stub().GetTrace, request, timeout, metadata, kind)

    async def close(self) -> None:
        """Disconnects; running generations are cancelled. Idempotent."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
