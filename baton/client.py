"""Clients of a running Baton: `Client` for threads, `AsyncClient` for asyncio.

    with Client() as client:
        for event in client.generate("Once upon a time", max_tokens=32):
            ...

Failures are the errors of `baton.errors`; an argument of the wrong type is a TypeError that
names it. Nothing is retried here: the router does that. A stream that was cut off, since its
router died, goes on at another one:

    except errors.Unavailable:
        client.generate(prompt, **options, resume_from=stream.resume_point())
"""

from types import TracebackType
from typing import Self, Unpack

import grpc
import grpc.aio

from baton import events
from baton._answers import to_model
from baton._calls import CHANNEL_OPTIONS, DEFAULT_ADDRESS, to_error
from baton._convert import GenerateOptions, Message, Prompt, to_request, to_timeout
from baton._received import Received
from baton._streams import AsyncStream, Stream
from baton.events import ResumeFrom
from baton.v1 import inference_pb2, inference_pb2_grpc

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Client",
    "GenerateOptions",
    "Message",
    "Prompt",
    "ResumeFrom",
    "Stream",
]

_STATUS_TIMEOUT = 30.0


class Client:
    """A client for threads: any number of them may call any method at the same time.

    Connects when first used, and again after a connection broke. `timeout` is the deadline in
    seconds of generations that set none; None: they may take as long as they take. Not usable
    after a fork.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, timeout: float | None = None) -> None:
        self.address = address
        self._timeout = to_timeout(timeout)
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Stream:
        """Starts a generation. Closing the stream, or dropping it, cancels it at once."""
        request = to_request(prompt, options)
        timeout = to_timeout(options.get("timeout"))
        call = self._stub.Generate(request, timeout=self._timeout if timeout is None else timeout)
        return Stream(call, self.address, Received(request))

    def complete(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> events.Completion:
        """Generates and returns the whole output."""
        collector = events.Collector()
        with self.generate(prompt, **options) as stream:
            for event in stream:
                collector.add(event)
        return collector.result()

    def model(self, *, timeout: float = _STATUS_TIMEOUT) -> events.Model:
        """The model that is served, and its limits."""
        try:
            answer = self._stub.GetModel(inference_pb2.GetModelRequest(), timeout=timeout)
        except grpc.RpcError as error:
            raise to_error(error, self.address) from error
        return to_model(answer)

    def fleet(
        self, *, check_integrity: bool = False, timeout: float = _STATUS_TIMEOUT
    ) -> inference_pb2.GetFleetResponse:
        """Every process, the queue and the work done, as the wire has it (inference.proto)."""
        request = inference_pb2.GetFleetRequest(check_integrity=check_integrity)
        try:
            return self._stub.GetFleet(request, timeout=timeout)
        except grpc.RpcError as error:
            raise to_error(error, self.address) from error

    def close(self) -> None:
        """Disconnects; running generations are cancelled. Idempotent."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient:
    """A client for asyncio, for one event loop; not thread-safe.

    Connects when first used, and again after a connection broke. `timeout` is the deadline in
    seconds of generations that set none; None: they may take as long as they take.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, timeout: float | None = None) -> None:
        self.address = address
        self._timeout = to_timeout(timeout)
        self._channel: grpc.aio.Channel | None = None

    def _stub(self) -> "inference_pb2_grpc.InferenceServiceAsyncStub":
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        return inference_pb2_grpc.InferenceServiceStub(self._channel)

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """Starts a generation. Closing the stream, or dropping it, cancels it at once."""
        request = to_request(prompt, options)
        timeout = to_timeout(options.get("timeout"))
        call = self._stub().Generate(request, timeout=self._timeout if timeout is None else timeout)
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

    async def model(self, *, timeout: float = _STATUS_TIMEOUT) -> events.Model:
        """The model that is served, and its limits."""
        try:
            answer = await self._stub().GetModel(inference_pb2.GetModelRequest(), timeout=timeout)
        except grpc.RpcError as error:
            raise to_error(error, self.address) from error
        return to_model(answer)

    async def fleet(
        self, *, check_integrity: bool = False, timeout: float = _STATUS_TIMEOUT
    ) -> inference_pb2.GetFleetResponse:
        """Every process, the queue and the work done, as the wire has it (inference.proto)."""
        request = inference_pb2.GetFleetRequest(check_integrity=check_integrity)
        try:
            return await self._stub().GetFleet(request, timeout=timeout)
        except grpc.RpcError as error:
            raise to_error(error, self.address) from error

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
