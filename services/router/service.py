"""InferenceService: converts between clients' messages and the router's values, nothing else."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from baton.v1 import inference_pb2, inference_pb2_grpc
from services.router import messages
from services.router.deadline import Deadline
from services.router.generation import Generator
from services.router.intake import Intake
from services.router.status import FleetStatus

SERVICE_NAME = "baton.v1.InferenceService"
Context = grpc.aio.ServicerContext[Any, Any]


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """What clients call. A call's deadline holds in every phase; closing it ends the request."""

    def __init__(self, generator: Generator, intake: Intake, status: FleetStatus) -> None:
        self._generator = generator
        self._intake = intake
        self._status = status

    async def Generate(  # noqa: N802
        self, request: inference_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        deadline = Deadline.after(context.time_remaining())
        fields = messages.request_fields(request)
        async with aclosing(self._generator.generate(fields, deadline)) as events:
            async for event in events:
                yield messages.response(event)

    async def GetModel(  # noqa: N802
        self, _request: inference_pb2.GetModelRequest, _context: Context
    ) -> inference_pb2.GetModelResponse:
        return messages.model_response(self._intake.model())

    async def GetFleet(  # noqa: N802
        self, request: inference_pb2.GetFleetRequest, _context: Context
    ) -> inference_pb2.GetFleetResponse:
        return await self._status.ask(request.check_integrity)
