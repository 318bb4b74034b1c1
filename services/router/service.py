"""InferenceService: converts between clients' messages and the router's values, nothing else."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from baton import errors
from baton.v1 import inference_pb2, inference_pb2_grpc
from services.router import messages
from services.router.deadline import Deadline
from services.router.door import Door
from services.router.explanation import trailing_metadata
from services.router.generation import Generator
from services.router.intake import Intake
from services.router.recent import RecentReports
from services.router.report import Report, Sink
from services.router.status import FleetStatus
from services.router.traces import Traces

SERVICE_NAME = "baton.v1.InferenceService"
Context = grpc.aio.ServicerContext[Any, Any]


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """What clients call. A call's deadline holds in every phase; closing it ends the request."""

    def __init__(
        self,
        generator: Generator,
        intake: Intake,
        status: FleetStatus,
        recent: RecentReports | None = None,
        door: Door | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._generator = generator
        self._intake = intake
        self._status = status
        self._recent = recent or RecentReports()
        self._door = door or Door()
        self._traces = traces

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        deadline = Deadline.after(context.time_remaining())
        asked, metadata = messages.request_fields(request), context.invocation_metadata()
        async with (
            self._door.admitted(asked, metadata) as fields,
            aclosing(self._generator.generate(fields, deadline, _teller(context))) as events,
        ):
            async for event in events:
                yield messages.response(event, self._intake.token_text)

    async def GetModel(  # noqa: N802
        self, _request: inference_pb2.GetModelRequest, _context: Context
    ) -> inference_pb2.GetModelResponse:
        return messages.model_response(self._intake.model())

    async def GetFleet(  # noqa: N802
        self, request: inference_pb2.GetFleetRequest, _context: Context
    ) -> inference_pb2.GetFleetResponse:
        return await self._status.ask(request.check_integrity)

    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        async with Deadline.after(context.time_remaining()).bounding("while tokenizing"):
            ids = await self._intake.tokenize(messages.tokenize_fields(request))
        texts = map(self._intake.token_text, ids)
        return inference_pb2.TokenizeResponse(token_ids=ids, texts=texts)

    async def Detokenize(  # noqa: N802
        self, request: inference_pb2.DetokenizeRequest, context: Context
    ) -> inference_pb2.DetokenizeResponse:
        async with Deadline.after(context.time_remaining()).bounding("while detokenizing"):
            text = await self._intake.detokenize(request.model, tuple(request.token_ids))
        return inference_pb2.DetokenizeResponse(text=text)

    async def GetTrace(  # noqa: N802
        self, request: inference_pb2.GetTraceRequest, _context: Context
    ) -> inference_pb2.GetTraceResponse:
        if self._traces is None:
            raise errors.NotFound("this router keeps no traces")
        return await self._traces.find(request.id)

    async def ListRequests(  # noqa: N802
        self, request: inference_pb2.ListRequestsRequest, _context: Context
    ) -> inference_pb2.ListRequestsResponse:
        return self._recent.after(request.after, request.limit)


def _teller(context: Context) -> Sink:
    """Has the call's trailing metadata tell what became of the request."""

    def tell(report: Report) -> None:
        context.set_trailing_metadata(trailing_metadata(report))

    return tell
