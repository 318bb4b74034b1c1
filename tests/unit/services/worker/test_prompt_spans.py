"""The spans of prompts and decode calls at workers, out of what the engine puts out."""

import threading

from baton.naming import RequestId
from baton.policy.fleet import Claim
from engine.types import FinishReason, SampledToken, SequenceOutput
from services.common.telemetry import tracing
from services.worker.decoding.events import DecodeJob, Finished, HandedOff, Started, Tokens
from services.worker.decoding.spans import decode_span
from services.worker.outbox import Outbox, StepTime
from services.worker.prompt_spans import PromptSpans
from tests.support.tracing import by_name, everything, traced


def output(computed, *tokens):
    return SequenceOutput("s", tuple(map(SampledToken, tokens)), computed, (), None)


async def test_each_step_of_a_prompt_is_a_chunk_and_before_the_first_it_waits():
    async with traced() as running:
        with tracing.span("prefill"):
            spans = PromptSpans(cached_tokens=16, arrived_s=100.0)
            spans.came(output(48), StepTime(100.5, 101.0))
            spans.came(output(60, 7), StepTime(101.25, 101.5))
            spans.came(output(60, 8), StepTime(101.5, 102.0))  # decodes
    wait, first, last = [one for one in everything(running.ring) if one.name != "prefill"]
    assert wait.name == "prefill.wait"
    assert wait.end_ns - wait.start_ns == 500_000_000
    assert wait.end_ns == first.start_ns == tracing.wall_ns(100.5)
    assert (first.end_ns, last.start_ns) == (tracing.wall_ns(101.0), tracing.wall_ns(101.25))
    assert first.attributes == {"baton.tokens": 32, "baton.context": 16}
    assert last.attributes == {"baton.tokens": 12, "baton.context": 48}
    parent = by_name(running.ring)["prefill"].span_id
    assert {wait.parent_id, first.parent_id, last.parent_id} == {parent}


async def test_a_prompt_that_need_not_be_computed_has_none():
    async with traced() as running:
        spans = PromptSpans(cached_tokens=60, arrived_s=100.0)
        spans.came(output(60, 7), StepTime(100.5, 101.0))
        spans.came(output(99), None)  # it left: no step brought that
    assert everything(running.ring) == []


async def test_a_step_comes_with_its_outputs():
    outbox = Outbox(lambda _: None)
    stream = outbox.open("s")
    for outputs in ([output(5)], [output(6)]):
        step = StepTime(1.0, outputs[0].computed_tokens) if outputs[0].computed_tokens < 6 else None
        thread = threading.Thread(target=outbox.hand_in, args=(outputs, step))
        thread.start()
        thread.join()
    assert (await stream.next()).computed_tokens == 5
    assert stream.step == StepTime(1.0, 5)
    await stream.next()
    assert stream.step is None


def job():
    from types import SimpleNamespace

    return DecodeJob(Claim(RequestId("r"), 2), SimpleNamespace(choice=1), None)


async def test_a_decode_call_says_when_its_first_and_last_steps_were():
    async with traced() as running:
        with decode_span(job()) as steps:
            steps.came(Started(10, 2, 1, 100, 0.5))
            for token in (1, 2, 3):
                steps.came(Tokens((SampledToken(token),)))
            steps.came(Finished(FinishReason.STOP, 3))
    span = by_name(running.ring)["decode.run"]
    first, last = span.moments
    assert (first.name, last.name) == ("first_step", "last_step")
    assert span.start_ns <= first.at_ns <= last.at_ns <= span.end_ns
    assert span.attributes["baton.attempt"] == 2
    assert span.attributes["baton.missing_tokens"] == 2
    assert span.attributes["gen_ai.usage.output_tokens"] == 3


async def test_a_decode_call_that_is_handed_over_before_a_step_says_that():
    async with traced() as running:
        with decode_span(job()) as steps:
            steps.came(HandedOff(FinishReason.HANDOVER, (), 0, (), ""))
    (moment,) = by_name(running.ring)["decode.run"].moments
    assert (moment.name, moment.attributes) == ("handed_off", {"baton.reason": "handover"})
