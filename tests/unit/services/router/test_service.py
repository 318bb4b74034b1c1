"""The router's door over real gRPC; behind it, workers are fakes."""

import asyncio
import math
import time

import grpc
import pytest
from google.protobuf import unknown_fields
from google.protobuf.duration_pb2 import Duration

from baton import errors
from baton.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2
from services.common import rpc
from services.router.recent import RecentReports
from services.router.report import Outcome
from services.router.service import SERVICE_NAME, InferenceService
from tests.support.router_parts import LIMITS, RouterParts

GENERATE = f"/{SERVICE_NAME}/Generate"
Request = inference_pb2.GenerateRequest
Params = sampling_pb2.SamplingParams


class FakeStatus:
    def __init__(self):
        self.asked = []

    async def ask(self, check_integrity):
        self.asked.append(check_integrity)
        return inference_pb2.GetFleetResponse(
            router=inference_pb2.RouterStatus(router_id="router-x")
        )


class Door:
    """A served router and a client's stub."""

    def __init__(self):
        self.recent = RecentReports()
        self.parts = RouterParts(sinks=[self.recent.keep])
        self.status = FakeStatus()

    async def __aenter__(self):
        service = InferenceService(
            self.parts.generator, self.parts.intake, self.status, self.recent
        )
        self.server = await rpc.serve(
            "127.0.0.1:0",
            [lambda s: inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, s)],
            [SERVICE_NAME],
        )
        self.channel = rpc.channel(self.server.address)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)
        return self

    async def __aexit__(self, *_):
        await self.channel.close()
        await self.server.stop(0)

    async def error(self, request, timeout=10):
        """The error that a call ends with."""
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in self.stub.Generate(request, timeout=timeout):
                pass
        return errors.from_rpc_error(raised.value)

    async def raw_error(self, data):
        """The error for bytes that are no valid message."""
        call = self.channel.unary_stream(
            GENERATE,
            request_serializer=lambda raw: raw,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in call(data, timeout=10):
                pass
        return errors.from_rpc_error(raised.value)


@pytest.fixture
async def door():
    async with Door() as door:
        yield door


async def test_generate_streams_deltas_and_the_end(door):
    request = Request(request_id="mine", text="prompt", sampling=Params(seed=5, logprobs=1))
    events = [event async for event in door.stub.Generate(request, timeout=10)]
    deltas, completed = [event.delta for event in events[1:-1]], events[-1].completed
    accepted = events[0].accepted
    assert (accepted.request_id, accepted.seed) == ("mine", 5)
    assert accepted.predicted_ttft.ToMilliseconds() == 250
    assert "".join(delta.text for delta in deltas) == "hello"
    tokens = [token for delta in deltas for token in delta.tokens]
    assert [token.token_id for token in tokens] == [*map(ord, "hello"), 0]
    assert [token.logprob for token in tokens] == [-0.5 - index for index in range(6)]
    assert tokens[0].top_logprobs[0].token_id == ord("h")
    assert [token.text for token in tokens] == [*(bytes([byte]) for byte in b"hello"), b"\0"]
    assert tokens[0].top_logprobs[0].text == b"h"
    [choice] = completed.choices
    assert choice.finish_reason == sampling_pb2.FINISH_REASON_STOP
    assert not choice.HasField("stop_string")
    assert (completed.request_id, completed.seed) == ("mine", 5)
    assert (completed.usage.prompt_tokens, completed.usage.completion_tokens) == (6, 6)
    assert completed.timings.HasField("handoff_gap")
    assert completed.timings.total.ToNanoseconds() > 0
    await door.parts.check_all_given_back()


async def test_chat_and_token_ids(door):
    chat = inference_pb2.ChatMessages(
        messages=[inference_pb2.ChatMessage(role="user", content="hi")]
    )
    ids = inference_pb2.TokenIds(ids=[1, 2, 3])
    for request, count in ((Request(chat=chat), len("user:hi;")), (Request(token_ids=ids), 3)):
        events = [event async for event in door.stub.Generate(request, timeout=10)]
        assert events[-1].completed.usage.prompt_tokens == count


async def test_texts_of_the_prompts_tokens_come_with_their_log_probabilities(door):
    for logprobs, texts in ((0, [b"a"]), (None, [b""])):
        sampling = Params(prompt_logprobs=logprobs, max_tokens=1)
        request = Request(text="a", echo=True, sampling=sampling)
        events = [event async for event in door.stub.Generate(request, timeout=10)]
        [prompt] = [event.prompt for event in events if event.HasField("prompt")]
        assert [token.text for token in prompt.tokens] == texts


async def test_tokenize_and_detokenize(door):
    tokenize, detokenize = door.stub.Tokenize, door.stub.Detokenize
    answer = await tokenize(inference_pb2.TokenizeRequest(text="aé"), timeout=10)
    assert list(answer.token_ids) == [ord("a"), ord("é")]
    assert list(answer.texts) == [b"a", "é".encode()]
    chat = inference_pb2.ChatMessages(
        messages=[inference_pb2.ChatMessage(role="user", content="hi")]
    )
    answer = await tokenize(inference_pb2.TokenizeRequest(chat=chat), timeout=10)
    assert bytes(answer.token_ids) == b"user:hi;"
    answer = await detokenize(inference_pb2.DetokenizeRequest(token_ids=[104, 105]), timeout=10)
    assert answer.text == "hi"


@pytest.mark.parametrize(
    ("method", "request_", "reason", "field"),
    [
        ("Tokenize", inference_pb2.TokenizeRequest(), "INVALID_REQUEST", "input"),
        ("Tokenize", inference_pb2.TokenizeRequest(text="x" * 300), "INVALID_REQUEST", "text"),
        ("Tokenize", inference_pb2.TokenizeRequest(text="", model="b"), "UNKNOWN_MODEL", "model"),
        ("Detokenize", inference_pb2.DetokenizeRequest(model="b"), "UNKNOWN_MODEL", "model"),
        (
            "Detokenize",
            inference_pb2.DetokenizeRequest(token_ids=[1, 2**31]),
            "INVALID_REQUEST",
            "token_ids[1]",
        ),
        (
            "Detokenize",
            inference_pb2.DetokenizeRequest(token_ids=[1] * 257),
            "INVALID_REQUEST",
            "token_ids",
        ),
    ],
)
async def test_bad_questions_for_tokens_and_text_are_refused(door, method, request_, reason, field):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await getattr(door.stub, method)(request_, timeout=10)
    error = errors.from_rpc_error(raised.value)
    assert (error.reason, error.field) == (reason, field)


BAD = [
    (Request(), "input"),
    (Request(text=""), "text"),
    (Request(text="x" * 256), "text"),
    (Request(text="x" * 300), "text"),
    (Request(text="x" * 10_000_000), "text"),
    (Request(chat=inference_pb2.ChatMessages()), "chat.messages"),
    (
        Request(
            chat=inference_pb2.ChatMessages(
                messages=[inference_pb2.ChatMessage(role="user")], tools_json=["{}", "[]"]
            )
        ),
        "chat.tools_json[1]",
    ),
    (Request(token_ids=inference_pb2.TokenIds()), "token_ids"),
    (Request(token_ids=inference_pb2.TokenIds(ids=[1, 2**32 - 1])), "token_ids.ids[1]"),
    (Request(text="a", request_id="spaces are wrong"), "request_id"),
    (Request(text="a", sampling=Params(temperature=math.nan)), "sampling.temperature"),
    (Request(text="a", sampling=Params(temperature=math.inf)), "sampling.temperature"),
    (Request(text="a", sampling=Params(temperature=-1)), "sampling.temperature"),
    (Request(text="a", sampling=Params(top_p=0)), "sampling.top_p"),
    (Request(text="a", sampling=Params(min_p=1.5)), "sampling.min_p"),
    (Request(text="a", sampling=Params(top_k=2**32 - 1)), "sampling.top_k"),
    (Request(text="a", sampling=Params(max_tokens=0)), "sampling.max_tokens"),
    (Request(text="a", sampling=Params(max_tokens=256)), "sampling.max_tokens"),
    (Request(text="a", sampling=Params(max_tokens=2, min_tokens=3)), "sampling.min_tokens"),
    (Request(text="a", sampling=Params(logprobs=21)), "sampling.logprobs"),
    (Request(text="a", sampling=Params(stop_token_ids=[2**32 - 1])), "sampling.stop_token_ids[0]"),
    (Request(text="a", sampling=Params(stop_token_ids=range(65))), "sampling.stop_token_ids"),
    (Request(text="a", stop=["b", ""]), "stop[1]"),
    (Request(text="a", stop=["b"] * 17), "stop"),
    (Request(text="a", request_class=9), "request_class"),
    (Request(text="a", ttft_target=Duration()), "ttft_target"),
    (Request(text="a", itl_target=Duration(seconds=3601)), "itl_target"),
    (Request(text="a", priority=-(2**31)), "priority"),
    (Request(text="a", tenant="no spaces"), "tenant"),
    (Request(text="a", resume_from=inference_pb2.ResumeFrom()), "resume_from.emitted"),
]


@pytest.mark.parametrize(("request_", "field"), BAD, ids=lambda value: str(value)[:40])
async def test_bad_request_names_its_field_and_costs_nothing(door, request_, field):
    error = await door.error(request_)
    assert isinstance(error, errors.InvalidRequest)
    assert error.field == field
    assert door.parts.dispatcher.demands == []
    assert [event async for event in door.stub.Generate(Request(text="ok"), timeout=10)]


async def test_a_stream_goes_on_where_it_was_cut(door):
    resume = inference_pb2.ResumeFrom(seed=5, emitted=[inference_pb2.TokenIds(ids=map(ord, "he"))])
    request = Request(text="prompt", resume_from=resume)
    events = [event async for event in door.stub.Generate(request, timeout=10)]
    assert "".join(event.delta.text for event in events) == "llo"
    completed = events[-1].completed
    assert (completed.seed, completed.usage.completion_tokens) == (5, 6)


async def test_unknown_model_is_not_found(door):
    error = await door.error(Request(text="a", model="other"))
    assert isinstance(error, errors.NotFound)
    assert error.field == "model"


RAW = [
    (Request(text="abc").SerializeToString().replace(b"abc", b"a\xffc"), "text"),
    (
        Request(text="a", stop=["ok", "bad"]).SerializeToString().replace(b"bad", b"b\xc3d"),
        "stop[1]",
    ),
    (Request(model="abc", text="x").SerializeToString().replace(b"abc", b"\x80bc"), "model"),
    (b"\xff\xff\xff\xff", "request"),
    (Request(text="abc").SerializeToString()[:-1], "request"),
]


@pytest.mark.parametrize(("data", "field"), RAW)
async def test_malformed_message_names_its_field(door, data, field):
    error = await door.raw_error(data)
    assert isinstance(error, errors.InvalidRequest)
    assert error.field == field


async def test_unknown_fields_of_newer_clients_are_ignored(door):
    request = Request.FromString(Request(text="a").SerializeToString() + b"\xf8\x07\x01")
    assert len(unknown_fields.UnknownFieldSet(request)) == 1
    events = [event async for event in door.stub.Generate(request, timeout=10)]
    assert events[-1].HasField("completed")


async def test_prefills_refusal_reaches_the_client_at_once(door):
    door.parts.legs.prefill_faults = [errors.InvalidRequest("prompt_token_ids", "too long")]
    started = time.monotonic()
    error = await door.error(Request(text="a"))
    assert isinstance(error, errors.InvalidRequest)
    assert error.field == "prompt_token_ids"
    assert time.monotonic() - started < 5
    await door.parts.check_all_given_back()


async def test_errors_carry_when_to_try_again(door):
    door.parts.legs.prefill_faults = [errors.Exhausted("full", retry_after=2.5)]
    error = await door.error(Request(text="a"))
    assert isinstance(error, errors.Exhausted)
    assert error.retry_after == 2.5


@pytest.mark.parametrize("stop_at", range(4))
async def test_deadline_ends_the_request(door, stop_at):
    door.parts.windows.stop_at = stop_at
    started = time.monotonic()
    error = await door.error(Request(text="a"), timeout=0.2)
    assert isinstance(error, errors.DeadlineExceeded)
    assert time.monotonic() - started < 5
    door.parts.windows.stop_at = None
    await until(lambda: door.parts.register.running == 0)
    await door.parts.check_all_given_back()


@pytest.mark.parametrize("seen", [0, 1, 3])
async def test_client_that_cancels_frees_everything(door, seen):
    door.parts.windows.stop_at = 4 + seen
    call = door.stub.Generate(Request(text="a"), timeout=10)
    for _ in range(seen):
        await call.read()
    async with asyncio.timeout(5):
        await door.parts.windows.reached.wait()
    call.cancel()
    await until(lambda: door.parts.register.running == 0)
    await door.parts.check_all_given_back()
    assert door.parts.register.counters.count(Outcome.CANCELLED) == 1


async def test_client_that_does_not_read_and_cancels_frees_everything(door):
    """The servicer is stuck in a write then, not in an await of its own."""
    door.parts.legs.outputs = [[ord("x")] * 250]
    door.parts.intake._tokenizer.detokenizer = lambda _ids: LongText()
    call = door.stub.Generate(Request(text="a", sampling=Params(max_tokens=250)), timeout=10)
    await call.read()
    await asyncio.sleep(0.3)
    assert door.parts.register.running == 1
    call.cancel()
    await until(lambda: door.parts.register.running == 0)
    await door.parts.check_all_given_back()


class LongText:
    """A token is a hundred kilobytes of text."""

    def push(self, _token_id):
        return "x" * 100_000

    def finish(self):
        return ""


async def test_closed_router_takes_nothing_and_finishes_what_runs(door):
    door.parts.windows.stop_at = 2
    running = door.stub.Generate(Request(text="a"), timeout=10)
    async with asyncio.timeout(5):
        await door.parts.windows.reached.wait()
    assert not await door.parts.register.close(grace_s=0.05)
    assert isinstance(await door.error(Request(text="b")), errors.Unavailable)
    running.cancel()
    assert await door.parts.register.close(grace_s=2)


async def test_get_model(door):
    model = await door.stub.GetModel(inference_pb2.GetModelRequest(), timeout=10)
    assert model.model.name == "letters"
    assert model.model.context_tokens == LIMITS.context_tokens
    assert list(model.model.eos_token_ids) == [0]
    assert model.has_chat_template
    assert model.default_max_tokens == 32
    assert model.interactive_targets.ttft.ToMilliseconds() == 2000
    assert model.batch_targets.itl.ToMilliseconds() == 2000


async def test_no_model_until_a_worker_came_and_for_ever_after(door):
    door.parts.fleet.limits = None
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await door.stub.GetModel(inference_pb2.GetModelRequest(), timeout=10)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert isinstance(await door.error(Request(text="a")), errors.Unavailable)
    door.parts.fleet.limits = LIMITS
    await door.stub.GetModel(inference_pb2.GetModelRequest(), timeout=10)
    door.parts.fleet.limits = None
    await door.stub.GetModel(inference_pb2.GetModelRequest(), timeout=10)


@pytest.mark.parametrize("check", [False, True])
async def test_get_fleet(door, check):
    fleet = await door.stub.GetFleet(
        inference_pb2.GetFleetRequest(check_integrity=check), timeout=10
    )
    assert fleet.router.router_id == "router-x"
    assert door.status.asked == [check]


async def until(condition):
    async with asyncio.timeout(1):
        while not condition():
            await asyncio.sleep(0.005)


async def test_the_requests_that_ended_are_listed(door):
    for name in ("one", "two"):
        request = Request(request_id=name, text="prompt")
        assert [event async for event in door.stub.Generate(request, timeout=10)]
    answer = await door.stub.ListRequests(inference_pb2.ListRequestsRequest(), timeout=10)
    assert [one.request_id for one in answer.requests] == ["one", "two"]
    newer = inference_pb2.ListRequestsRequest(after=answer.sequence - 1)
    answer = await door.stub.ListRequests(newer, timeout=10)
    assert [one.request_id for one in answer.requests] == ["two"]
