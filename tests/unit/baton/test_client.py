"""Both clients against a scripted router, over real gRPC."""

import asyncio
import gc
import socket
import threading
import time

import pytest
from google.protobuf import duration_pb2

from baton import errors, events
from baton.addresses import to_target
from baton.client import AsyncClient, Client, Message, ResumeFrom
from baton.v1 import inference_pb2, sampling_pb2
from tests.support.fake_router import FakeRouter, accepted, completed, delta, ended, two_tokens
from tests.support.proxy import Proxy

SOON = 5.0


def endless(release: threading.Event):
    """One token, then nothing until the test ends."""

    def script(request):
        yield delta("a", 1)
        release.wait(30)

    return script


@pytest.fixture
def hanging():
    release = threading.Event()
    with FakeRouter(endless(release)) as router:
        yield router
        release.set()


def test_events_in_order_and_typed():
    with FakeRouter() as router, Client(router.address) as client:
        seen = list(client.generate("hi", seed=9, request_id="r-1"))
    assert seen[0] == events.Delta("Hello", (events.Token(7),))
    assert seen[1] == events.Delta(" sea", (events.Token(8),))
    assert seen[2] == events.Completed(
        choices=(events.CompletedChoice(0, events.FinishReason.STOP, None, 2, ""),),
        usage=events.Usage(5, 2, 1),
        timings=events.Timings(0.5, 0.0, 0.0, None, 2.0, "prefill-0", "", 0, 0),
        request_id="r-1",
        seed=9,
    )
    assert len(seen) == 3


def test_a_busy_router_has_time_to_take_a_connection():
    with FakeRouter() as router:
        proxy = Proxy(router.address)
        proxy.start()
        try:
            with proxy.delayed(0.4), Client(proxy.address) as client:
                assert client.complete("hi", timeout=20).text == "Hello sea"
        finally:
            proxy.close()


def test_the_word_that_it_was_let_in_is_no_event():
    with FakeRouter() as router, Client(router.address) as client:
        stream = client.generate("hi", request_id="r-1")
        assert (stream.accepted, stream.resume_point()) == (None, None)
        assert isinstance(next(stream), events.Delta)
        assert stream.accepted == events.Accepted("r-1", 5, 0.5)
        assert stream.resume_point() == ResumeFrom(5, ((7,),))
        list(stream)
        assert stream.resume_point() == ResumeFrom(5, ((7, 8),))


def cut_off(request):
    """A router that dies after every second token of two choices."""
    yield accepted(request)
    yield delta("", 1, 2, choice=1)
    raise errors.Unavailable("gone")


def test_a_stream_that_is_cut_again_and_again_goes_on():
    with FakeRouter(cut_off) as router, Client(router.address) as client:
        resume = None
        for times in (1, 2, 3):
            stream = client.generate("hi", n=2, resume_from=resume)
            with pytest.raises(errors.Unavailable):
                list(stream)
            resume = stream.resume_point()
            assert resume == ResumeFrom(5, ((), (1, 2) * times))
    assert [list(one.ids) for one in router.requests[2].resume_from.emitted] == [[], [1, 2, 1, 2]]
    assert router.requests[2].resume_from.seed == 5


async def test_async_streams_tell_where_to_go_on_too():
    with FakeRouter(cut_off) as router:
        async with AsyncClient(router.address) as client:
            stream = client.generate("hi", n=2)
            assert stream.accepted is None
            with pytest.raises(errors.Unavailable):
                _ = [event async for event in stream]
            assert stream.accepted.seed == 5
            assert stream.resume_point() == ResumeFrom(5, ((), (1, 2)))


def test_what_was_predicted_and_moves():
    def script(request):
        timings = inference_pb2.Timings(
            predicted_ttft=duration_pb2.Duration(seconds=1),
            predicted_itl=duration_pb2.Duration(nanos=500_000_000),
            migrations=3,
        )
        yield completed(request, timings=timings)

    with FakeRouter(script) as router, Client(router.address) as client:
        timings = client.complete("hi").completed.timings
    assert (timings.predicted_ttft, timings.predicted_itl, timings.migrations) == (1.0, 0.5, 3)


def test_the_server_sees_a_finished_call_and_no_cancel():
    with FakeRouter() as router, Client(router.address) as client:
        with client.generate("hi") as stream:
            for event in stream:
                if isinstance(event, events.Completed):
                    break
        assert router.finished.wait(SOON)
        assert not router.cancelled.is_set()


def test_complete_adds_up():
    with FakeRouter() as router, Client(router.address) as client:
        whole = client.complete("hi")
    assert whole.text == "Hello sea"
    assert whole.token_ids == (7, 8)
    assert whole.finish_reason == "stop"
    assert whole.usage.completion_tokens == 2


def test_logprobs_and_stop_string():
    def script(request):
        top = [sampling_pb2.TokenLogprob(token_id=3, logprob=-0.25)]
        token = sampling_pb2.SampledToken(token_id=3, logprob=-0.25, top_logprobs=top)
        yield delta("x", token)
        yield completed(
            request, ended(stop_string="END", finish_reason=sampling_pb2.FINISH_REASON_LENGTH)
        )

    with FakeRouter(script) as router, Client(router.address) as client:
        first, last = client.generate("hi", logprobs=1)
    assert first.tokens == (events.Token(3, -0.25, (events.TokenLogprob(3, -0.25),)),)
    assert last.stop_string == "END"
    assert last.finish_reason is events.FinishReason.LENGTH


def two_choices(request):
    prompt = inference_pb2.GeneratePrompt(text="hi", tokens=[sampling_pb2.SampledToken(token_id=5)])
    yield inference_pb2.GenerateResponse(prompt=prompt)
    yield delta("a", 1, choice=1)
    yield delta("b", 2)
    yield delta("c", 3, choice=1)
    length = sampling_pb2.FINISH_REASON_LENGTH
    yield completed(
        request, ended(stop_string="x"), ended(1, finish_reason=length, decode_worker="d")
    )


def test_choices_and_the_echoed_prompt():
    with FakeRouter(two_choices) as router, Client(router.address) as client:
        seen = list(client.generate("hi", n=2, echo=True))
        whole = client.complete("hi", n=2, echo=True)
    assert seen[0] == events.PromptEcho("hi", (events.Token(5),)) == whole.prompt
    assert [event.choice for event in seen[1:-1]] == [1, 0, 1]
    assert seen[-1].choices[1] == events.CompletedChoice(1, "length", None, 2, "d")
    assert (seen[-1].finish_reason, seen[-1].stop_string) == ("stop", "x")
    assert [choice.text for choice in whole.choices] == ["b", "ac"]
    assert [choice.token_ids for choice in whole.choices] == [(2,), (1, 3)]
    assert [choice.finish_reason for choice in whole.choices] == ["stop", "length"]
    assert [choice.stop_string for choice in whole.choices] == ["x", None]
    assert (whole.text, whole.token_ids, whole.finish_reason) == ("b", (2,), "stop")
    assert (router.requests[0].n, router.requests[0].echo) == (2, True)


def test_a_completion_without_choices_is_an_error():
    def script(request):
        yield completed(request, choices=())

    with (
        FakeRouter(script) as router,
        Client(router.address) as client,
        pytest.raises(errors.InternalError, match="without a choice"),
    ):
        client.complete("hi")


def test_an_event_kind_of_a_newer_router_is_skipped():
    def script(request):
        yield inference_pb2.GenerateResponse()
        yield from two_tokens(request)

    with FakeRouter(script) as router, Client(router.address) as client:
        assert client.complete("hi").text == "Hello sea"


def test_a_stream_without_completion_is_an_error():
    def script(request):
        yield delta("a", 1)

    with FakeRouter(script) as router, Client(router.address) as client:
        stream = client.generate("hi")
        next(stream)
        with pytest.raises(errors.InternalError, match="without a completion"):
            next(stream)
        assert list(stream) == []


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("sampling.top_p", "must be above 0"),
        errors.Exhausted("full", retry_after=1.5),
        errors.NotFound("no such model"),
        errors.Unavailable("draining", reason="DRAINING"),
    ],
)
def test_errors_arrive_whole(error):
    def script(request):
        yield delta("a", 1)
        raise error

    with FakeRouter(script) as router, Client(router.address) as client:
        stream = client.generate("hi")
        next(stream)
        with pytest.raises(type(error)) as raised:
            next(stream)
    assert raised.value.message == error.message
    assert raised.value.field == error.field
    assert raised.value.retry_after == error.retry_after
    assert raised.value.reason == error.reason


def test_nothing_there_is_unavailable_and_says_where():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with Client(address) as client, pytest.raises(errors.Unavailable, match=address) as raised:
            client.complete("hi")
    assert raised.value.reason == "UNREACHABLE"


@pytest.mark.parametrize("where", ["client", "call"])
def test_deadlines(hanging, where):
    with Client(hanging.address, timeout=0.2 if where == "client" else None) as client:
        options = {"timeout": 0.2} if where == "call" else {}
        with pytest.raises(errors.DeadlineExceeded):
            client.complete("hi", **options)
    assert hanging.cancelled.wait(SOON)


def test_closing_cancels_at_once(hanging):
    with Client(hanging.address) as client:
        stream = client.generate("hi")
        next(stream)
        stream.close()
        assert hanging.cancelled.wait(SOON)
        assert list(stream) == []


def test_dropping_a_stream_cancels_it(hanging):
    with Client(hanging.address) as client:
        for _ in client.generate("hi"):
            break
        gc.collect()
        assert hanging.cancelled.wait(SOON)


def test_closing_from_another_thread_interrupts_the_iteration(hanging):
    with Client(hanging.address) as client:
        stream = client.generate("hi")
        next(stream)
        closer = threading.Timer(0.1, stream.close)
        closer.start()
        with pytest.raises(errors.Cancelled):
            next(stream)
        closer.join()


def test_closing_the_client_cancels(hanging):
    with Client(hanging.address) as client:
        stream = client.generate("hi")
        next(stream)
    assert hanging.cancelled.wait(SOON)
    with pytest.raises(errors.Cancelled):
        next(stream)


def test_one_client_serves_many_threads():
    results: list[str] = []

    def work(client):
        results.append(client.complete("hi").text)

    with FakeRouter() as router, Client(router.address) as client:
        threads = [threading.Thread(target=work, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == ["Hello sea"] * 8


def test_model_and_fleet():
    with FakeRouter() as router, Client(router.address) as client:
        router.fleet.queue.waiting = 3
        recommended = events.DefaultSampling(temperature=0.5, top_k=4)
        assert client.model() == events.Model(
            "tiny", 300, 512, frozenset({1, 2}), True, 64, recommended, events.Targets(2.0, 0.25)
        )
        assert client.fleet(check_integrity=True).queue.waiting == 3
        router.ended = [inference_pb2.RequestReport(request_id=name) for name in "abc"]
        answer = client.requests(after=1, limit=1)
        assert [one.request_id for one in answer.requests] == ["c"]
        assert answer.sequence == 3
        client.fleet()
        assert router.checked == [True, False]


def test_a_client_finds_a_router_that_came_back():
    with FakeRouter() as router, Client(router.address) as client:
        client.complete("hi")
        address = router.address
        router.__exit__()
        with pytest.raises(errors.Unavailable):
            client.complete("hi")
        with FakeRouter(address=address):
            deadline = time.monotonic() + SOON
            while True:
                try:
                    client.complete("hi")
                    break
                except errors.Unavailable:
                    assert time.monotonic() < deadline, "never found it again"
                    time.sleep(0.05)


async def test_async_events_and_complete():
    with FakeRouter() as router:
        async with AsyncClient(router.address) as client:
            seen = [event async for event in client.generate([1, 2, 3])]
            assert [type(event) for event in seen] == [events.Delta, events.Delta, events.Completed]
            whole = await client.complete([Message("user", "hi")])
            assert whole.text == "Hello sea"
            assert (await client.model()).name == "tiny"
            assert (await client.fleet()).queue.waiting == 0
            assert (await client.requests()).sequence == 0
        assert list(router.requests[0].token_ids.ids) == [1, 2, 3]
        assert router.requests[1].chat.messages[0].content == "hi"


async def test_async_errors():
    def script(request):
        raise errors.InvalidRequest("text", "is empty")
        yield

    with FakeRouter(script) as router:
        async with AsyncClient(router.address) as client:
            with pytest.raises(errors.InvalidRequest) as raised:
                await client.complete("")
    assert raised.value.field == "text"


async def test_async_cancelling_the_task_cancels_at_once(hanging):
    async with AsyncClient(hanging.address) as client:
        task = asyncio.create_task(client.complete("hi"))
        while not hanging.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(hanging.cancelled.wait, SOON)


async def test_async_closing_cancels_at_once(hanging):
    async with AsyncClient(hanging.address) as client:
        stream = client.generate("hi")
        await anext(stream)
        await stream.aclose()
        assert await asyncio.to_thread(hanging.cancelled.wait, SOON)
        assert [event async for event in stream] == []


async def test_async_breaking_out_cancels(hanging):
    async with AsyncClient(hanging.address) as client:
        async for _ in client.generate("hi"):
            break
        assert await asyncio.to_thread(hanging.cancelled.wait, SOON)


async def test_async_closing_from_another_task_interrupts_the_iteration(hanging):
    async with AsyncClient(hanging.address) as client:
        stream = client.generate("hi")
        await anext(stream)
        waiting = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.05)
        await stream.aclose()
        with pytest.raises(errors.Cancelled):
            await waiting


async def test_async_deadline(hanging):
    async with AsyncClient(hanging.address, timeout=0.2) as client:
        with pytest.raises(errors.DeadlineExceeded):
            await client.complete("hi")


async def test_async_server_sees_no_cancel_after_a_completion():
    with FakeRouter() as router:
        async with AsyncClient(router.address) as client, client.generate("hi") as stream:
            async for event in stream:
                if isinstance(event, events.Completed):
                    break
        assert await asyncio.to_thread(router.finished.wait, SOON)
        assert not router.cancelled.is_set()


async def test_async_many_streams_at_once():
    with FakeRouter() as router:
        async with AsyncClient(router.address) as client:
            whole = await asyncio.gather(*(client.complete("hi") for _ in range(8)))
    assert [one.text for one in whole] == ["Hello sea"] * 8


def test_calls_carry_metadata_and_end_with_an_explanation():
    report = inference_pb2.RequestReport(request_id="r-1").SerializeToString()
    with FakeRouter() as router, Client(router.address) as client:
        router.trailing = [("baton-explanation", "waited"), ("baton-report-bin", report)]
        stream = client.generate("hi", metadata={"authorization": "Bearer k"})
        assert stream.explanation == ""
        list(stream)
    assert router.metadata[0]["authorization"] == "Bearer k"
    assert stream.explanation == "waited"
    assert stream.report is not None
    assert stream.report.request_id == "r-1"


async def test_async_streams_end_with_an_explanation_even_a_broken_one():
    with FakeRouter() as router:
        router.trailing = [("baton-explanation", "waited"), ("baton-report-bin", b"\xff\xff")]
        async with AsyncClient(router.address) as client:
            stream = client.generate("hi")
            [event async for event in stream]
    assert (stream.explanation, stream.report) == ("waited", None)


async def test_tokens_and_back():
    with FakeRouter() as router, Client(router.address) as client:
        expected = events.Tokens((104, 105), (b"h", b"i"))
        assert client.tokenize("hi", special_tokens=False) == expected
        assert client.detokenize([104, 105]) == "hi"
        with pytest.raises(errors.InvalidRequest):
            client.detokenize([300])
        async with AsyncClient(router.address) as other:
            assert await other.tokenize("hi") == expected
            assert await other.detokenize([104]) == "h"
            await other.tokenize([Message("user", "a")], model="tiny")
    assert [one.without_special_tokens for one in router.tokenized] == [True, False, False]
    assert router.tokenized[2].chat.messages[0].content == "a"
    assert router.tokenized[2].model == "tiny"


def test_the_texts_of_tokens_and_the_way_to_call_tools():
    def script(request):
        top = sampling_pb2.TokenLogprob(token_id=2, logprob=-1.0, text=b"t")
        token = sampling_pb2.SampledToken(token_id=1, logprob=-0.5, text=b"s", top_logprobs=[top])
        yield delta("s", token)
        yield completed(request)

    with FakeRouter(script) as router, Client(router.address) as client:
        (token,) = client.complete("hi", logprobs=1).tokens
        assert (token.text, token.top[0].text) == (b"s", b"t")
        assert client.model().tool_format is events.ToolFormat.NONE
        router.tool_format = inference_pb2.TOOL_FORMAT_HERMES
        assert client.model().tool_format is events.ToolFormat.HERMES


def test_several_addresses_are_used_in_turn():
    with (
        FakeRouter() as one,
        FakeRouter() as two,
        Client(f"{one.address}, {two.address}") as client,
    ):
        deadline = time.monotonic() + SOON
        while not (one.requests and two.requests):
            client.complete("hi")
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("localhost:7600", "localhost:7600"),
        ("dns:///routers:7600", "dns:///routers:7600"),
        ("ipv4:1.2.3.4:1,5.6.7.8:2", "ipv4:1.2.3.4:1,5.6.7.8:2"),
        ("1.2.3.4:1, 5.6.7.8:2", "ipv4:1.2.3.4:1,5.6.7.8:2"),
        ("[::1]:1,[::2]:2", "ipv6:[::1]:1,[::2]:2"),
    ],
)
def test_addresses_are_targets(address, target):
    assert to_target(address) == target


def test_several_names_are_no_target():
    with pytest.raises(ValueError, match="must be IP addresses"):
        to_target("a:1,b:2")
