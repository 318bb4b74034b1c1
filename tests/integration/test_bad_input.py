"""Bad input: the right status, the field named, the server and its neighbours unharmed."""

import asyncio
import math

import grpc
import pytest

from baton import errors
from baton.client import AsyncClient
from baton.v1 import inference_pb2, sampling_pb2
from services.common import rpc

GENERATE = "/baton.v1.InferenceService/Generate"
NAN, INF = math.nan, math.inf


def request(**fields):
    sampling = fields.pop("sampling", {})
    ids = fields.pop("token_ids", None)
    if ids is not None:
        fields["token_ids"] = inference_pb2.TokenIds(ids=ids)
    return inference_pb2.GenerateRequest(**fields, sampling=sampling_pb2.SamplingParams(**sampling))


BAD = [
    (request(), "input"),
    (request(text=""), "text"),
    (request(token_ids=[]), "token_ids"),
    (request(token_ids=[5, 4_000_000_000]), "token_ids.ids[1]"),
    (request(token_ids=[5] * 100_000), "token_ids"),
    (request(text="word " * 5_000), "text"),
    (request(text="x" * 10_000_000), "text"),
    (request(chat=inference_pb2.ChatMessages()), "chat.messages"),
    (request(text="a", sampling={"temperature": -0.1}), "sampling.temperature"),
    (request(text="a", sampling={"temperature": 1e9}), "sampling.temperature"),
    (request(text="a", sampling={"temperature": NAN}), "sampling.temperature"),
    (request(text="a", sampling={"temperature": INF}), "sampling.temperature"),
    (request(text="a", sampling={"top_p": 0.0}), "sampling.top_p"),
    (request(text="a", sampling={"top_p": 1.5}), "sampling.top_p"),
    (request(text="a", sampling={"top_p": NAN}), "sampling.top_p"),
    (request(text="a", sampling={"min_p": -1.0}), "sampling.min_p"),
    (request(text="a", sampling={"min_p": NAN}), "sampling.min_p"),
    (request(text="a", sampling={"top_k": 4_000_000_000}), "sampling.top_k"),
    (request(text="a", sampling={"max_tokens": 0}), "sampling.max_tokens"),
    (request(text="a", sampling={"max_tokens": 4_000_000_000}), "sampling.max_tokens"),
    (request(text="a", sampling={"max_tokens": 2, "min_tokens": 3}), "sampling.min_tokens"),
    (request(text="a", sampling={"logprobs": 21}), "sampling.logprobs"),
    (request(text="a", sampling={"logprobs": 4_000_000_000}), "sampling.logprobs"),
    (request(text="a", sampling={"stop_token_ids": [4_000_000_000]}), "sampling.stop_token_ids[0]"),
    (request(text="a", sampling={"stop_token_ids": [1] * 65}), "sampling.stop_token_ids"),
    (request(text="a", stop=["x"] * 17), "stop"),
    (request(text="a", stop=["fine", ""]), "stop[1]"),
    (request(text="a", stop=["x" * 257]), "stop[0]"),
    (request(text="a", request_id="spaces are not allowed"), "request_id"),
    (request(text="a", request_id="x" * 129), "request_id"),
]


@pytest.fixture
async def channel(cluster):
    async with rpc.channel(cluster.address) as opened:
        yield opened


@pytest.fixture
async def neighbours(cluster):
    """Four streams that run while the test sends bad input; they must not notice."""
    async with AsyncClient(cluster.address) as client:

        async def stream():
            tokens = []
            async with client.generate(
                [3, 4, 5, 6], max_tokens=60, temperature=0.0, ignore_eos=True
            ) as events:
                async for event in events:
                    tokens += [token.id for token in getattr(event, "tokens", ())]
            return tokens

        alone = await stream()
        running = [asyncio.create_task(stream()) for _ in range(4)]
        yield
        assert await asyncio.gather(*running) == [alone] * 4


async def refusal(channel, data):
    """The error that raw bytes are answered with."""
    call = channel.unary_stream(GENERATE)(data, timeout=10)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in call:
            pass
    return errors.from_rpc_error(refused.value)


async def test_each_bad_value_is_refused_by_name(channel, neighbours):
    seen = [await refusal(channel, message.SerializeToString()) for message, _ in BAD]
    assert [(type(error), error.field) for error in seen] == [
        (errors.InvalidRequest, field) for _, field in BAD
    ]
    assert all(error.message.startswith(field) for error, (_, field) in zip(seen, BAD, strict=True))


async def test_invalid_utf8_is_refused_by_name(channel, neighbours):
    message = request(text="BAD", stop=["x"]).SerializeToString()
    error = await refusal(channel, message.replace(b"BAD", b"\xc3\x28\xff"))
    assert type(error) is errors.InvalidRequest
    assert error.field == "text"


async def test_garbage_is_refused(channel, neighbours):
    for data in (b"\xff" * 50, b"\x00", b"\x1a\xff\xff\xff\xff\x0f"):
        error = await refusal(channel, data)
        assert type(error) is errors.InvalidRequest
        assert error.field == "request"


async def test_an_unknown_model_is_not_found(channel, neighbours):
    error = await refusal(channel, request(text="a", model="gpt-17").SerializeToString())
    assert type(error) is errors.NotFound
    assert "gpt-17" in error.message


async def test_a_message_beyond_the_limit_is_refused(channel, neighbours):
    error = await refusal(channel, request(text="x" * 20_000_000).SerializeToString())
    assert type(error) is errors.Exhausted


async def test_control_characters_and_every_plane_are_text(cluster):
    async with AsyncClient(cluster.address) as client:
        for text in ("\0\x01\x02", "\N{GRINNING FACE}" * 3, "\u202e\ufeff", " \n\t "):
            async with client.generate(text, max_tokens=2, ignore_eos=True) as events:
                kinds = [type(event).__name__ async for event in events]
            assert kinds[-1] == "Completed"
