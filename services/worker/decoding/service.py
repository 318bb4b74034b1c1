"""The servicer of DecodeService: messages in, messages out."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from baton.v1 import decode_pb2, decode_pb2_grpc
from services.common.rpc import Register
from services.worker.decoding.answers import response
from services.worker.decoding.flow import DecodeFlow
from services.worker.decoding.jobs import Jobs
from services.worker.decoding.spans import decode_span
from services.worker.host import Host

NAME = decode_pb2.DESCRIPTOR.services_by_name["DecodeService"].full_name


class DecodeServicer(decode_pb2_grpc.DecodeServiceServicer):
    """Answers for one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._jobs = Jobs(host)
        self._flow = DecodeFlow(host)

    async def Decode(  # noqa: N802 - named by the protocol
        self,
        request: decode_pb2.DecodeRequest,
        _context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        """Streams the tokens of one sequence."""
        job = await self._jobs.job(request)
        with decode_span(job) as steps:
            async with aclosing(self._flow.run(job)) as events:
                async for event in events:
                    steps.came(event)
                    yield response(event, request, self._host)


def make_servicer(host: Host) -> tuple[Register, str]:
    """How to register the servicer for `host`, and its full name."""
    servicer = DecodeServicer(host)

    def register(server: grpc.aio.Server) -> None:
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, server)

    return register, NAME
