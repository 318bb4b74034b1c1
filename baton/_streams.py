"""The events of one generation, as iterators for threads and for asyncio."""

import asyncio
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from baton import errors, events
from baton._calls import last_metadata, to_error
from baton._received import Received
from baton.events import ResumeFrom
from baton.v1 import inference_pb2

_Response = inference_pb2.GenerateResponse
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
        received: Received,
    ) -> None:
        self._received = received
        self._call = call
        self._address = address
        self._ended = False

    @property
    def explanation(self) -> str:
        """What became of the request, in words; empty before the end, or where none was told."""
        return self._received.explanation

    @property
    def report(self) -> inference_pb2.RequestReport | None:
        """The same, as the wire has it (inference.proto)."""
        return self._received.report

    @property
    def accepted(self) -> events.Accepted | None:
        """The word that the generation was let in; None before it came."""
        return self._received.accepted

    def resume_point(self) -> ResumeFrom | None:
        """Where another stream may go on with this one (`resume_from`), with the same prompt and
        options; None before the generation was let in."""
        return self._received.resume_point()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> events.Event:
        if self._ended:
            raise StopIteration
        try:
            while (event := self._received.take(next(self._call))) is None:
                continue
            if isinstance(event, events.Completed):
                self._ended = True
                for _ in self._call:  # the status, so that the server sees no cancel
                    continue
                self._received.take_metadata(self._call.trailing_metadata())
        except StopIteration:
            self._ended = True
            raise errors.InternalError(_CUT_OFF) from None
        except grpc.RpcError as error:
            self._ended = True
            self._received.take_metadata(last_metadata(error))
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


class AsyncStream:
    """The events of one generation, in order: the prompt if asked for, deltas, one completion.

    Cancelling the task that iterates cancels the generation. An iteration that another task
    interrupts by `aclose` raises Cancelled.
    """

    def __init__(
        self,
        call: "grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, _Response]",
        address: str,
        received: Received,
    ) -> None:
        self._received = received
        self._call = call
        self._responses = call.__aiter__()
        self._address = address
        self._ended = False
        self._closed = False

    @property
    def explanation(self) -> str:
        """What became of the request, in words; empty before the end, or where none was told."""
        return self._received.explanation

    @property
    def report(self) -> inference_pb2.RequestReport | None:
        """The same, as the wire has it (inference.proto)."""
        return self._received.report

    @property
    def accepted(self) -> events.Accepted | None:
        """The word that the generation was let in; None before it came."""
        return self._received.accepted

    def resume_point(self) -> ResumeFrom | None:
        """Where another stream may go on with this one (`resume_from`), with the same prompt and
        options; None before the generation was let in."""
        return self._received.resume_point()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> events.Event:
        if self._ended:
            raise StopAsyncIteration
        try:
            while (event := self._received.take(await anext(self._responses))) is None:
                continue
            if isinstance(event, events.Completed):
                self._ended = True
                async for _ in self._responses:  # the status, so that the server sees no cancel
                    continue
                self._received.take_metadata(await self._call.trailing_metadata())
        except StopAsyncIteration:
            self._ended = True
            raise errors.InternalError(_CUT_OFF) from None
        except grpc.RpcError as error:
            self._ended = True
            self._received.take_metadata(last_metadata(error))
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
