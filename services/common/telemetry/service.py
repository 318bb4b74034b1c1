"""TelemetryService: what this process remembers of traces. `rpc.serve` registers it."""

from typing import Any

import grpc

from baton import errors
from baton.v1 import telemetry_pb2, telemetry_pb2_grpc
from services.common.telemetry.messages import span_message
from services.common.telemetry.ring import SpanRing

NAME = telemetry_pb2.DESCRIPTOR.services_by_name["TelemetryService"].full_name
MAX_TRACES = 64
_TRACE_ID_BYTES = 16


class TelemetryServicer(telemetry_pb2_grpc.TelemetryServiceServicer):
    """Answers for one process."""

    def __init__(self, ring: SpanRing, process: str) -> None:
        self._ring = ring
        self._process = process

    async def ListSpans(  # noqa: N802 - named by the protocol
        self,
        request: telemetry_pb2.ListSpansRequest,
        _context: grpc.aio.ServicerContext[Any, Any],
    ) -> telemetry_pb2.ListSpansResponse:
        """The spans of some traces."""
        if len(request.trace_ids) > MAX_TRACES:
            raise errors.InvalidRequest("trace_ids", f"must be at most {MAX_TRACES}")
        for index, trace_id in enumerate(request.trace_ids):
            if len(trace_id) != _TRACE_ID_BYTES:
                raise errors.InvalidRequest(f"trace_ids[{index}]", "must have 16 bytes")
        spans = self._ring.spans(request.trace_ids)
        return telemetry_pb2.ListSpansResponse(
            spans=[span_message(span, self._process) for span in spans]
        )
