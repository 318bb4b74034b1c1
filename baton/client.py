"""Clients of a running Baton: `Client` for threads, `AsyncClient` for asyncio.

    with Client() as client:
        for event in client.generate("Once upon a time", max_tokens=32):
            ...

Failures are the errors of `baton.errors`; an argument of the wrong type is a TypeError that
names it. Nothing is retried here: before the first token the router does that.
"""

import asyncio
from types import TracebackType
from typing import Self, Unpack

import grpc
import grpc.aio

from baton import errors, events
from baton._answers import to_event, to_model
from baton._calls import CHANNEL_OPTIONS, DEFAULT_ADDRESS, to_error
from baton._convert import GenerateOptions, Message, Prompt, to_request, to_timeout
from baton.v1 import inference_pb2, inference_pb2_grpc

__all__ = ["AsyncClient", "AsyncStream", "Client", "GenerateOptions", "Message", "Prompt", "Stream"]

_Response = inference_pb2.GenerateResponse
_STATUS_TIMEOUT = 30.0
_CUT_OFF = "the stream ended without a completion"


class Stream:
    """The events of one generation, in order: the prompt if asked for, deltas, one completion.

    An iterator for one thread; only `close` may be called from others too. An iteration that
    is interrupted by that raises Cancelled.
    """

    def __init__(
        self,
        call: "grpc._CallIterator[_Response]",
        address: str,
    ) -> None:
        self._call = call
        self._address = address
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> events.Event:
        if self._ended:
            raise StopIteration
        try:
            while (event := to_event(next(self._call))) is None:
                continue
            if isinstance(event, events.Completed):
                self._ended = True
                for _ in self._call:  # the status, so that the server sees no cancel
                    continue
        except StopIteration:
            self._ended = True
            raise errors.InternalError(_CUT_OFF) from None
        except grpc.RpcError as error:
            self._ended = True
            raise to_error(error, self._address) from error
        except BaseException:
            self.close()
            raise
        return event

    def close(self) -> None:
        """Ends the generation at once if it still runs. Idempotent, never raises."""
        self._ended = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


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
        return Stream(call, self.address)

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


class AsyncStream:
    """The events of one generation, in order: the prompt if asked for, deltas, one completion.

    Cancelling the task that iterates cancels the generation. An iteration that another task
    interrupts by `aclose` raises Cancelled.
    """

    def __init__(
        self,
        call: "grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, _Response]",
        address: str,
    ) -> None:
        self._call = call
        self._responses = call.__aiter__()
        self._address = address
        self._ended = False
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> events.Event:
        if self._ended:
            raise StopAsyncIteration
        try:
            while (event := to_event(await anext(self._responses))) is None:
                continue
            if isinstance(event, events.Completed):
                self._ended = True
                async for _ in self._responses:  # the status, so that the server sees no cancel
                    continue
        except StopAsyncIteration:
            self._ended = True
            raise errors.InternalError(_CUT_OFF) from None
        except grpc.RpcError as error:
            self._ended = True
            raise to_error(error, self._address) from error
        except asyncio.CancelledError:
            interrupted = self._closed
            self._cancel()
            task = asyncio.current_task()
            if interrupted and not (task and task.cancelling()):
                raise errors.Cancelled("the stream was closed") from None
            raise
        except BaseException:
            self._cancel()
            raise
        return event

    async def aclose(self) -> None:
        """Ends the generation at once if it still runs. Idempotent, never raises."""
        self._closed = True
        self._cancel()

    def _cancel(self) -> None:
        self._ended = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._cancel()


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
        return AsyncStream(call, self.address)

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
