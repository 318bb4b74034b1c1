"""Traces gathered from processes: real servers, some of which say nothing."""

import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from baton import errors
from baton.v1 import telemetry_pb2, telemetry_pb2_grpc
from services.common import rpc
from services.common.background import Background
from services.common.telemetry import context, tracing
from services.router.channels import Channels
from services.router.traces import Traces
from tests.support.tracing import traced


@dataclass
class Member:
    worker_id: str
    address: str
    transfer_address: str = ""


@dataclass
class Fleet:
    workers: list = field(default_factory=list)


class Remembers(telemetry_pb2_grpc.TelemetryServiceServicer):
    """A process with one span of every trace."""

    def __init__(self, process, start_s):
        self.process, self.start_s = process, start_s

    async def ListSpans(self, request, context):
        answer = telemetry_pb2.ListSpansResponse()
        for trace_id in request.trace_ids:
            span = answer.spans.add(trace_id=trace_id, name="x", process=self.process)
            span.start.FromNanoseconds(int(self.start_s * 1e9))
        return answer


async def serve(servicer):
    return await rpc.serve(
        "127.0.0.1:0",
        [lambda s: telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(servicer, s)],
        [],
    )


@pytest.fixture
async def channels():
    opened = Channels(Background(1.0))
    yield opened
    await opened.close()


def report(request_id, trace_id):
    return SimpleNamespace(request_id=request_id, trace_id=trace_id)


async def test_spans_of_all_processes_are_merged_by_their_start(channels):
    now = time.time()
    worker = await serve(Remembers("decode-0", now + 50))
    transfer = await serve(Remembers("transfer", now - 50))
    async with traced("router") as running:
        with tracing.span("generate") as span:
            pass
        fleet = Fleet([Member("decode-0", worker.address, transfer.address)])
        traces = Traces(running, channels, fleet)
        traces.keep(report("mine", context.trace_id_of(span)))
        answers = [
            await traces.find(asked) for asked in ("mine", context.trace_id_of(span).hex().upper())
        ]
    for answer in answers:
        assert [one.process for one in answer.spans] == ["transfer", "router", "decode-0"]
        assert not answer.silent
    await worker.stop(0)
    await transfer.stop(0)


async def test_who_does_not_answer_is_named_and_not_waited_for(channels):
    gone = await serve(Remembers("gone", 0))
    await gone.stop(0)
    async with traced("router") as running:
        with tracing.span("generate") as span:
            pass
        fleet = Fleet([Member("decode-0", gone.address, "127.0.0.1:1")])
        traces = Traces(running, channels, fleet, patience_s=0.3)
        began = time.monotonic()
        answer = await traces.find(context.trace_id_of(span).hex())
        assert time.monotonic() - began < 5.0
        assert list(answer.silent) == ["decode-0", "transfer 127.0.0.1:1"]
        assert len(answer.spans) == 1
        with pytest.raises(errors.NotFound, match="decode-0"):
            await traces.find("0" * 31 + "1")


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ("", errors.InvalidRequest),
        ("x" * 500, errors.InvalidRequest),
        ("unknown", errors.NotFound),
        ("f" * 32, errors.NotFound),
    ],
)
async def test_what_nobody_knows(channels, asked, error):
    with pytest.raises(error):
        await Traces(None, channels, Fleet()).find(asked)


async def test_only_the_last_requests_are_remembered(channels):
    traces = Traces(None, channels, Fleet(), size=2)
    for name in ("a", "b", "a", "c"):
        traces.keep(report(name, name.encode() * 16))
    traces.keep(report("untraced", b""))
    assert len(traces) == 2
    with pytest.raises(errors.NotFound, match="this router remembers no request 'b'"):
        await traces.find("b")
