"""What trailing metadata tell of a request."""

import contextlib

from baton.errors import Exhausted, Unavailable
from baton.v1 import inference_pb2
from services.router.explanation import EXPLANATION, REPORT, TRACE_ID, trailing_metadata
from tests.support.router_parts import RouterParts, request
from tests.support.tracing import traced

GONE = Unavailable("gone")


async def told_of(*outputs, fields=None, faults=(), **options):
    reports = []
    parts = RouterParts(*outputs, sinks=[reports.append], **options)
    parts.legs.prefill_faults = list(faults)
    with contextlib.suppress(Exhausted, Unavailable):
        await parts.run_choices(fields)
    (report,) = reports
    return dict(trailing_metadata(report))


async def test_a_good_answer_is_explained_in_a_line():
    async with traced():
        told = await told_of("hello\0")
    line = told[EXPLANATION]
    assert line.isascii()
    assert "\n" not in line
    for part in ("queue ", "prefill ", " on prefill-0", "ttft ", "predicted ", "itl "):
        assert part in line
    assert "of 6 tokens cached" in line
    assert "decode on decode-0" in line
    assert "attempts: 1 prefill, 1 decode" in line
    report = inference_pb2.RequestReport.FromString(told[REPORT])
    assert report.usage.completion_tokens == 6
    assert told[TRACE_ID] == report.trace_id.hex()


async def test_a_failure_says_why():
    told = await told_of(faults=[GONE] * 10)
    assert told[EXPLANATION].endswith(f"failed ({GONE.reason})")
    assert TRACE_ID not in told


async def test_a_prompt_beside_decode_says_so():
    told = await told_of(prefill=0, fields=request())
    assert "cached" in told[EXPLANATION]
    assert "attempts: 0 prefill, 1 decode" in told[EXPLANATION]
