"""An OpenTelemetry collector in the test's process: OTLP over gRPC, in memory."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1 import (
    trace_service_pb2,
    trace_service_pb2_grpc,
)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Listens on entering; `spans` has what came."""

    def __init__(self):
        self._came = threading.Condition()
        self._spans = []
        self._server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        """Ends at once."""
        self._server.stop(None).wait(5)

    def Export(self, request, context):
        with self._came:
            for resource in request.resource_spans:
                told = {one.key: one.value.string_value for one in resource.resource.attributes}
                self._spans += [
                    (told["service.instance.id"], span)
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
            self._came.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self):
        """(process, span) of each that came."""
        with self._came:
            return list(self._spans)

    def wait_for(self, condition, timeout=10.0):
        """Waits until `condition` holds of the spans; whether it does."""
        with self._came:
            return self._came.wait_for(lambda: condition(self._spans), timeout)
