"""The trace of one request, gathered from all processes that had a part in it.

Like the fleet's status a relay: spans go to the client as they came, so this module works on
messages. A process that does not answer is named, and not waited for.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence

import grpc

from baton import errors
from baton.naming import MAX_REQUEST_ID_CHARACTERS
from baton.v1 import inference_pb2, telemetry_pb2, telemetry_pb2_grpc
from services.common.telemetry.messages import span_message
from services.common.telemetry.tracing import Tracing
from services.router.channels import Channels
from services.router.fleet import FleetView
from services.router.report import Report

PATIENCE_S = 1.0
MAX_REQUESTS = 5_000
_TRACE_ID = re.compile("[0-9a-f]{32}")


Running = Callable[[str], bytes | None]


class Traces:
    """Finds traces. Belongs to one event loop."""

    def __init__(
        self,
        own: Tracing | None,
        channels: Channels,
        fleet: FleetView,
        running: Running = lambda _: None,
        patience_s: float = PATIENCE_S,
        size: int = MAX_REQUESTS,
    ) -> None:
        """`own`: the router's traces; None: it has none. `running` tells the trace of a request
        in progress, by its id."""
        self._own = own
        self._channels = channels
        self._fleet = fleet
        self._running = running
        self._patience_s = patience_s
        self._size = size
        self._ids: OrderedDict[str, bytes] = OrderedDict()
        """Traces of the last requests by their ids, the oldest first."""

    def __len__(self) -> int:
        return len(self._ids)

    def keep(self, report: Report) -> None:
        """Remembers which trace a request has: a `Sink`."""
        if report.trace_id:
            self._ids[report.request_id] = report.trace_id
            self._ids.move_to_end(report.request_id)
            if len(self._ids) > self._size:
                self._ids.popitem(last=False)

    async def find(self, asked: str) -> inference_pb2.GetTraceResponse:
        """The spans of the request with that id, or of the trace with those 32 digits. Raises
        InvalidRequest, or NotFound where no process remembers any."""
        trace_id = self._trace_id(asked)
        answers = await self._ask_all(trace_id)
        spans = [span for answer in answers.values() if answer is not None for span in answer]
        if self._own is not None:
            own = self._own.ring.spans([trace_id])
            spans += [span_message(span, self._own.name) for span in own]
        silent = sorted(name for name, answer in answers.items() if answer is None)
        if not spans:
            missing = f"; {', '.join(silent)} did not answer" if silent else ""
            raise errors.NotFound(f"no process remembers a trace of {asked!r}{missing}")
        spans.sort(key=lambda span: span.start.ToNanoseconds())
        return inference_pb2.GetTraceResponse(spans=spans, silent=silent)

    def _trace_id(self, asked: str) -> bytes:
        if not asked or len(asked) > MAX_REQUEST_ID_CHARACTERS:
            raise errors.InvalidRequest(
                "id", f"must have 1 to {MAX_REQUEST_ID_CHARACTERS} characters"
            )
        if known := self._running(asked) or self._ids.get(asked):
            return known
        if _TRACE_ID.fullmatch(asked.lower()):
            return bytes.fromhex(asked)
        raise errors.NotFound(f"this router remembers no request {asked!r}")

    async def _ask_all(self, trace_id: bytes) -> dict[str, Sequence[telemetry_pb2.Span] | None]:
        """What each worker and transfer service remembers; None: it did not answer."""
        workers = self._fleet.workers
        transfers = sorted({worker.transfer_address for worker in workers} - {""})
        everyone = {str(worker.worker_id): worker.address for worker in workers}
        everyone |= {f"transfer {address}": address for address in transfers}
        answers = await asyncio.gather(*(self._ask(at, trace_id) for at in everyone.values()))
        return dict(zip(everyone, answers, strict=True))

    async def _ask(self, address: str, trace_id: bytes) -> Sequence[telemetry_pb2.Span] | None:
        request = telemetry_pb2.ListSpansRequest(trace_ids=[trace_id])
        with self._channels.use(address) as channel:
            stub = telemetry_pb2_grpc.TelemetryServiceStub(channel)
            try:
                answer = await stub.ListSpans(request, timeout=self._patience_s)
            except grpc.RpcError:
                return None
        return answer.spans
