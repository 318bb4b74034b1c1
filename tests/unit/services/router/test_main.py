"""The whole router process, with a real Redis and scripted workers around it."""

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.policy.fleet import ModelLimits, Role
from baton.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    kv_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    sampling_pb2,
    transfer_pb2,
    transfer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from services.common import rpc
from services.common.fleet.store import FleetStore
from tests.support.fleet import registered, until
from tests.support.router_parts import worker
from tests.support.tokenizers import byte_level

LIMITS = ModelLimits("tiny", vocab_size=420, context_tokens=200, eos_token_ids=frozenset({1}))
WORDS = byte_level().encode(" of the words in the text").ids


class Worker(
    prefill_pb2_grpc.PrefillServiceServicer,
    decode_pb2_grpc.DecodeServiceServicer,
    worker_pb2_grpc.WorkerServiceServicer,
    transfer_pb2_grpc.TransferServiceServicer,
):
    """Says WORDS, whatever it is asked; a worker of both roles and a transfer service in one."""

    def __init__(self):
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.broken = []
        self.leases = set()

    async def Prefill(self, request, context):
        self.leases.add(request.lease_id)
        first = sampling_pb2.SampledToken(token_id=WORDS[0])
        handoff = kv_pb2.Handoff(request_id=request.request_id, sampling=request.sampling)
        handoff.choices.add(emitted=[first])
        first_tokens = [prefill_pb2.FirstToken(token=first)]
        return prefill_pb2.PrefillResponse(first_tokens=first_tokens, handoff=handoff)

    async def Decode(self, request, context):
        if request.WhichOneof("start") == "handoff":
            done = len(request.handoff.choices[0].emitted)
        else:
            done = len(request.prompt.emitted_token_ids)
        yield decode_pb2.DecodeResponse(started=decode_pb2.DecodeStarted())
        for token_id in [*WORDS, 1][done:]:
            if self.broken and done == self.broken[0]:
                self.broken.pop(0)
                return
            await self.go_on.wait()
            token = sampling_pb2.SampledToken(token_id=token_id)
            yield decode_pb2.DecodeResponse(tokens=decode_pb2.DecodeTokens(tokens=[token]))
            done += 1
        yield decode_pb2.DecodeResponse(
            finished=decode_pb2.DecodeFinished(finish_reason=sampling_pb2.FINISH_REASON_STOP)
        )

    async def RenewLease(self, request, context):
        return transfer_pb2.RenewLeaseResponse()

    async def ReleaseLease(self, request, context):
        self.leases.discard(request.lease_id)
        return transfer_pb2.ReleaseLeaseResponse()

    async def GetTransferStatus(self, request, context):
        return transfer_pb2.GetTransferStatusResponse()

    async def GetWorkerStatus(self, request, context):
        return worker_pb2.GetWorkerStatusResponse()

    async def WatchBlobs(self, request, context):
        yield kv_pb2.BlobChanges(sequence=1, reset=True)
        await asyncio.Event().wait()


@pytest.fixture
async def service():
    return Worker()


@pytest.fixture
async def worker_address(service):
    server = await rpc.serve(
        "127.0.0.1:0",
        [
            lambda s: prefill_pb2_grpc.add_PrefillServiceServicer_to_server(service, s),
            lambda s: decode_pb2_grpc.add_DecodeServiceServicer_to_server(service, s),
            lambda s: worker_pb2_grpc.add_WorkerServiceServicer_to_server(service, s),
            lambda s: transfer_pb2_grpc.add_TransferServiceServicer_to_server(service, s),
        ],
        [],
    )
    yield server.address
    await server.stop(0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    byte_level().save(str(directory / "tokenizer.json"))
    return directory


class RouterProcess:
    """`python -m services.router`, its address and a client."""

    def __init__(self, process, address):
        self.process = process
        self.channel = rpc.channel(address)
        self.stub = inference_pb2_grpc.InferenceServiceStub(self.channel)

    async def health(self, service=""):
        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


@contextlib.asynccontextmanager
async def router(model, directory, *flags):
    ready = directory / "ready"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.router",
        f"--model={model}",
        "--address=127.0.0.1:0",
        f"--ready-file={ready}",
        *flags,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
    )
    try:
        await until(lambda: ready.exists() or process.returncode is not None, timeout_s=30)
        assert ready.exists(), (await process.stderr.read()).decode()
        running = RouterProcess(process, ready.read_text())
        yield running
        await running.channel.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def members(address):
    return [
        replace(worker(role, address=address), transfer_address=address, model=LIMITS)
        for role in Role
    ]


def ask(**fields):
    return inference_pb2.GenerateRequest(text="the end of the", **fields)


async def test_serves_finishes_on_sigterm_and_exits_0(
    model, redis_server, fleet, tmp_path, service, worker_address
):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }}{% if tools %}<tool_call>{% endif %}")
    flags = (
        f"--redis={redis_server.url}",
        f"--fleet={fleet}",
        "--disaggregation=always",
        f"--chat-template={template}",
    )
    async with router(model, tmp_path, *flags) as running:
        assert await running.health() == await running.health("live") == "SERVING"
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await running.stub.GetModel(inference_pb2.GetModelRequest(), timeout=5)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

        async with registered(redis_server.url, fleet, *members(worker_address)):
            await until_served(running)
            await tokenizes_chats(running)
            service.broken = [3]
            text, ids, completed = await everything(running.stub.Generate(ask(), timeout=10))
            assert text == " of the words in the text"
            assert ids == [*WORDS, 1]
            assert completed.timings.prefill_worker == "prefill-0"
            assert completed.timings.decode_worker == "decode-0"
            assert completed.timings.decode_attempts == 2

            await idle(running)
            assert service.leases == set()

            service.go_on.clear()
            events = aiter(running.stub.Generate(ask(), timeout=20))
            assert (await anext(events)).HasField("accepted")
            assert (await anext(events)).HasField("delta")
            running.process.send_signal(signal.SIGTERM)
            await until_not_serving(running)
            assert await running.health("live") == "SERVING"
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await running.stub.Generate(ask(), timeout=5).read()
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            service.go_on.set()
            _, ids, completed = await everything(events)
            assert ids == [*WORDS, 1][1:]
            assert completed.usage.completion_tokens == len(WORDS) + 1
            async with asyncio.timeout(5):
                assert await running.process.wait() == 0
    store = FleetStore(redis_server.url, fleet)
    demand = await store.demand()
    await store.close()
    assert (demand.requests, demand.computed_requests, demand.sequences) == (2, 2, 2)
    assert demand.output_tokens == 2 * (len(WORDS) + 1)


async def test_serves_without_redis_after_a_bounded_wait(model, tmp_path):
    flags = ("--redis=redis://127.0.0.1:1/0", "--redis-wait-s=0.3")
    async with router(model, tmp_path, *flags) as running:
        assert await running.health() == "SERVING"
        fleet = await running.stub.GetFleet(inference_pb2.GetFleetRequest(), timeout=5)
        assert not fleet.queue.redis_available
        running.process.terminate()
        async with asyncio.timeout(5):
            assert await running.process.wait() == 0


async def test_missing_model_is_one_line(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.router",
        f"--model={tmp_path / 'nothing'}",
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(20):
        _, stderr = await process.communicate()
    assert process.returncode == 1
    [line] = stderr.decode().splitlines()
    assert "nothing" in line


async def tokenizes_chats(running):
    """The template that was told is the model's, which has none of its own."""
    model = await running.stub.GetModel(inference_pb2.GetModelRequest(), timeout=5)
    assert model.has_chat_template
    assert model.tool_format == inference_pb2.TOOL_FORMAT_HERMES
    said = inference_pb2.ChatMessage(role="user", content="the end")
    chat = inference_pb2.ChatMessages(messages=[said])
    answer = await running.stub.Tokenize(inference_pb2.TokenizeRequest(chat=chat), timeout=5)
    assert b"".join(answer.texts) == b"the end"
    asked = inference_pb2.DetokenizeRequest(token_ids=answer.token_ids)
    assert (await running.stub.Detokenize(asked, timeout=5)).text == "the end"


async def everything(events):
    text, ids, completed = "", [], None
    async for event in events:
        text += event.delta.text
        ids += [token.token_id for token in event.delta.tokens]
        if event.HasField("completed"):
            completed = event.completed
    return text, ids, completed


async def until_served(running):
    async with asyncio.timeout(5):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await running.stub.GetModel(inference_pb2.GetModelRequest(), timeout=5)
            await asyncio.sleep(0.02)


async def until_not_serving(running):
    async with asyncio.timeout(5):
        while await running.health() == "SERVING":
            await asyncio.sleep(0.02)


async def idle(running):
    async with asyncio.timeout(3):
        while True:
            fleet = await running.stub.GetFleet(
                inference_pb2.GetFleetRequest(check_integrity=True), timeout=5
            )
            if fleet.router.running_requests == fleet.router.leases == fleet.queue.claims == 0:
                return
            await asyncio.sleep(0.05)
