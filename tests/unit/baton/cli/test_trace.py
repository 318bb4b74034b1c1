"""`baton trace`: the rows of a trace, and how they are shown, against a scripted router."""

import io
import json
from concurrent import futures

import grpc
import pytest
from rich.console import Console
from typer.testing import CliRunner

from baton import errors
from baton.cli import app, waterfall
from baton.cli.trace import draw
from baton.v1 import inference_pb2, inference_pb2_grpc, telemetry_pb2

BEGAN = 1_790_000_000_000
"""Milliseconds."""


def span(name, process, start, duration, number, parent=0, **fields):
    """A span with times in milliseconds."""
    made = telemetry_pb2.Span(
        trace_id=b"\xab" * 16,
        span_id=bytes([number]) * 8,
        parent_span_id=bytes([parent]) * 8 if parent else b"",
        name=name,
        process=process,
        **fields,
    )
    made.start.FromNanoseconds((BEGAN + start) * 1_000_000)
    made.duration.FromNanoseconds(duration * 1_000_000)
    return made


def a_trace(skew=0):
    """Of a request; the clock of the prefill worker is `skew` milliseconds ahead."""
    return [
        span("generate", "router", 0, 100, 1),
        span("queue", "router", 0, 10, 2, 1),
        span("prefill", "router", 10, 40, 3, 1),
        span("prefill.wait", "prefill-0", 12 + skew, 3, 4, 3),
        span("prefill.chunk", "prefill-0", 15 + skew, 30, 5, 3, attributes={"baton.tokens": "12"}),
        span("decode", "router", 50, 50, 6, 1),
    ]


def test_parts_are_below_what_they_are_parts_of():
    rows = waterfall.rows(list(reversed(a_trace())))
    assert [(row.name, row.depth) for row in rows] == [
        ("generate", 0),
        ("queue", 1),
        ("prefill", 1),
        ("prefill.wait", 2),
        ("prefill.chunk", 2),
        ("decode", 1),
    ]
    assert [round(row.seconds * 1e3) for row in rows] == [100, 10, 40, 3, 30, 50]


@pytest.mark.parametrize("skew", [-5_000, -7, 0, 2, 30, 60_000])
def test_clocks_that_differ_move_a_processs_parts_together(skew):
    rows = {row.name: row for row in waterfall.rows(a_trace(skew))}
    wait, chunk, prefill = rows["prefill.wait"], rows["prefill.chunk"], rows["prefill"]
    assert prefill.start_ns <= wait.start_ns
    assert chunk.end_ns <= prefill.end_ns
    assert chunk.start_ns - wait.start_ns == 3_000_000
    assert round(chunk.seconds * 1e3) == 30


def test_what_is_inside_a_part_that_was_moved_moves_with_it():
    spans = [
        span("decode", "router", 0, 50, 1),
        span("decode.run", "decode-0", 9_000, 40, 2, 1),
        span("kv.fetch", "decode-0", 9_005, 10, 3, 2),
    ]
    _, run, fetch = waterfall.rows(spans)
    assert fetch.start_ns - run.start_ns == 5_000_000
    assert run.end_ns <= (BEGAN + 50) * 1_000_000


def test_many_of_a_kind_are_one_row():
    chunks = [span("prefill.chunk", "prefill-0", 5 * i, 5, 10 + i, 1) for i in range(20)]
    rows = waterfall.rows([span("prefill", "router", 0, 100, 1), *chunks])
    assert [(row.name, row.count) for row in rows] == [("prefill", 1), ("prefill.chunk", 20)]
    assert rows[1].seconds == pytest.approx(0.1)


def test_a_part_whose_whole_is_not_known_is_at_the_top():
    assert [row.depth for row in waterfall.rows([span("x", "a", 0, 1, 2, parent=9)])] == [0]


def test_a_part_of_itself_or_of_a_circle_hangs_nothing():
    itself = span("x", "a", 0, 1, 2, parent=2)
    assert len(waterfall.rows([itself, span("y", "a", 0, 1, 3)])) == 2
    waterfall.rows([span("x", "a", 0, 1, 2, parent=3), span("y", "a", 0, 1, 3, parent=2)])


def shown(spans, width=80, silent=()):
    out = io.StringIO()
    answer = inference_pb2.GetTraceResponse(spans=spans, silent=silent)
    draw(answer, Console(file=out, width=width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("skew", [0, 60_000])
def test_bars_are_on_one_axis_and_fit_80_columns(skew):
    head, *lines = shown(a_trace(skew))
    assert head == f"trace {'ab' * 16}: 100.0 ms, 6 spans of 2 processes"
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) == 6
    bars = [line[49:] for line in lines]
    assert bars[0].strip() == "█" * len(bars[0])
    queue, prefill, decode = bars[1], bars[2], bars[5]
    assert queue.startswith("█")
    assert len(queue.rstrip()) <= len(prefill) - len(prefill.lstrip()) + 1
    assert len(prefill.rstrip()) <= len(decode) - len(decode.lstrip()) + 1
    assert "10.0 ms" in lines[1]
    assert "prefill-0" in lines[3]


def test_failures_retries_and_the_silent_are_told():
    root = span("generate", "router", 0, 10, 1, error="Unavailable: gone")
    retry = root.events.add(name="retry", attributes={"baton.worker": "prefill-0"})
    retry.offset.FromMilliseconds(4)
    text = "\n".join(shown([root], silent=["decode-0"]))
    assert "retry at 4.0 ms: prefill-0" in text
    assert "failed: Unavailable: gone" in text
    assert "silent: decode-0" in text


class Remembers(inference_pb2_grpc.InferenceServiceServicer):
    """A router that knows one trace."""

    def GetTrace(self, request, context):
        if request.id != "mine":
            from grpc_status import rpc_status

            status = errors.to_status(errors.NotFound("no such request"))
            context.abort_with_status(rpc_status.to_status(status))
        return inference_pb2.GetTraceResponse(spans=a_trace())


@pytest.fixture
def address():
    server = grpc.server(futures.ThreadPoolExecutor(2))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Remembers(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def run(address, *arguments):
    return CliRunner().invoke(app, ["trace", f"--address={address}", *arguments])


@pytest.mark.parametrize("asked", ["mine", "cmpl-mine", "chatcmpl-mine"])
def test_the_command_shows_a_waterfall(address, asked):
    done = run(address, asked)
    assert done.exit_code == 0, done.output
    assert "prefill.chunk" in done.output
    assert "\x1b" not in done.output


def test_json_has_times_and_details_as_they_are(address):
    done = run(address, "mine", "--json")
    told = json.loads(done.output)
    chunk = told["spans"][4]
    assert chunk["attributes"] == {"baton.tokens": "12"}
    assert chunk["duration"] == 0.03
    assert chunk["start"].endswith("Z")
    assert chunk["trace_id"] == "ab" * 16


def test_a_request_that_nobody_remembers_is_a_plain_line(address):
    done = run(address, "other")
    assert done.exit_code == 1
    assert "no such request" in done.output
