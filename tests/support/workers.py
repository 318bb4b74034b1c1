"""Engine workers in the test's own process, served over loopback gRPC, beside a real transfer
service process. Plays the router's part for one worker of each role."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import torch

from baton.errors import from_rpc_error
from baton.policy.fleet import Role
from baton.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    kv_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
    sampling_pb2,
    transfer_pb2,
    transfer_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from engine import Engine, EngineConfig, Request
from services.common import rpc
from services.common.durations import to_duration
from services.decode.settings import DecodeSettings
from services.prefill.service import make_servicer as make_prefill_servicer
from services.prefill.settings import PrefillSettings
from services.worker.assembly import engine_config, make_host, serve_host
from services.worker.decoding.service import make_servicer as make_decode_servicer
from services.worker.sampling import sampling_params
from tests.support import forked

BLOCK = 4
SERVICERS = {
    Role.PREFILL: [make_prefill_servicer, make_decode_servicer],
    Role.DECODE: [make_decode_servicer],
}
_numbers = itertools.count()


class TransferProcess:
    """A transfer service of its own; `address` stays the same over a restart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        ready = self._directory / f"ready-{next(_numbers)}"
        flags = ["--address", self.address]
        self.process, self.address = forked.serve("services.transfer", ready, flags)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    async def status(self) -> transfer_pb2.GetTransferStatusResponse:
        """What it holds, its integrity checked."""
        async with rpc.channel(self.address) as channel:
            return await transfer_pb2_grpc.TransferServiceStub(channel).GetTransferStatus(
                transfer_pb2.GetTransferStatusRequest(check_integrity=True), timeout=5
            )

    async def release(self, lease_id: str) -> None:
        async with rpc.channel(self.address) as channel:
            await transfer_pb2_grpc.TransferServiceStub(channel).ReleaseLease(
                transfer_pb2.ReleaseLeaseRequest(lease_id=lease_id), timeout=5
            )


class LocalWorker:
    """A worker of this process and stubs to it."""

    def __init__(self, host, server, channel) -> None:
        self.host = host
        self.server = server
        self.prefill_stub = prefill_pb2_grpc.PrefillServiceStub(channel)
        self.decode_stub = decode_pb2_grpc.DecodeServiceStub(channel)
        self.status_stub = worker_pb2_grpc.WorkerServiceStub(channel)

    async def status(self, check_integrity: bool = True) -> worker_pb2.GetWorkerStatusResponse:
        return await self.status_stub.GetWorkerStatus(
            worker_pb2.GetWorkerStatusRequest(check_integrity=check_integrity), timeout=5
        )

    async def becomes_clean(self, within_s: float = 3.0) -> worker_pb2.GetWorkerStatusResponse:
        """The status once nothing is held, every structure being sound; fails after a while."""
        deadline = time.monotonic() + within_s
        while True:
            status = await self.status()
            left = [
                *(f"{g.used_blocks} blocks of {g.name}" for g in status.kv_groups if g.used_blocks),
                *(["a running sequence"] if status.running_sequences else []),
                *(["a waiting sequence"] if status.waiting_sequences else []),
                *(["a claim"] if status.record.taken else []),
                *(["room"] if status.record.running != worker_pb2.WorkerUsage() else []),
            ]
            if not left:
                return status
            assert time.monotonic() < deadline, f"still held: {', '.join(left)}"
            await asyncio.sleep(0.01)

    async def runs(self, sequences: int = 1, within_s: float = 5.0) -> None:
        """Returns once so many sequences run."""
        deadline = time.monotonic() + within_s
        while (await self.status(check_integrity=False)).running_sequences < sequences:
            assert time.monotonic() < deadline, f"{sequences} sequences never ran"

    def prefill(self, request: prefill_pb2.PrefillRequest, timeout: float = 20.0):
        return self.prefill_stub.Prefill(request, timeout=timeout)

    def decode(self, request: decode_pb2.DecodeRequest, timeout: float = 20.0):
        return self.decode_stub.Decode(request, timeout=timeout)


def make_settings(role: Role, model: Path, transfer: str, **values):
    kind = PrefillSettings if role is Role.PREFILL else DecodeSettings
    defaults = {
        "model": model, "transfer": transfer, "dtype": "float32", "threads": 1,
        "block_size": BLOCK, "kv_bytes": 4 << 20, "segment_bytes": 8 << 20, "max_sequences": 4,
        "max_step_tokens": 8, "checkpoint_blocks": 2, "fetch_seconds": 2.0,
        "warmup_seconds": 0.0, "measure_peaks": False, "canary_ratio": 0.0,
    }  # fmt: skip
    return kind(_cli_parse_args=[], **(defaults | values))


@contextlib.asynccontextmanager
async def local_worker(
    role: Role, model: Path, transfer: str, **values
) -> AsyncIterator[LocalWorker]:
    settings = make_settings(role, model, transfer, **values)
    engine = Engine.load(model, engine_config(settings))
    failed = asyncio.Event()
    host = make_host(settings, role, engine, failed)
    await host.transfer.start()
    await host.start(settings.warmup_seconds, peaks=settings.measure_peaks)
    server = await serve_host(settings, host, SERVICERS[role])
    channel = rpc.channel(server.address)
    try:
        yield LocalWorker(host, server, channel)
    finally:
        await channel.close()
        host.port.blobs.close()
        await server.stop(0.5)
        await host.transfer.close()
        await host.port.stop()


def sampling(**values) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(
        **({"temperature": 0.0, "seed": 11, "max_tokens": 10, "ignore_eos": True} | values)
    )


def prefill_request(
    prompt, *, attempt=0, request_id=None, choices=0, **values
) -> prefill_pb2.PrefillRequest:
    number = next(_numbers)
    return prefill_pb2.PrefillRequest(
        request_id=request_id or f"request-{number}",
        attempt=attempt,
        prompt_token_ids=prompt,
        sampling=sampling(**values),
        lease_id=f"lease-{number}",
        choices=choices,
    )


def first_of(response: prefill_pb2.PrefillResponse) -> sampling_pb2.SampledToken:
    """The first token of the one choice of a request."""
    (first,) = response.first_tokens
    assert first.choice == 0
    return first.token


def handoff_of(handoff: kv_pb2.Handoff, place: int) -> kv_pb2.Handoff:
    """The handoff with one of its choices alone, as a router sends it."""
    alone = kv_pb2.Handoff.FromString(handoff.SerializeToString())
    del alone.choices[:]
    alone.choices.append(handoff.choices[place])
    alone.request_id = f"{handoff.request_id}-{handoff.choices[place].index}"
    return alone


def decode_request(
    handoff, *, attempt=None, itl_target=None, priority=0
) -> decode_pb2.DecodeRequest:
    return decode_pb2.DecodeRequest(
        request_id=handoff.request_id,
        attempt=handoff.attempt if attempt is None else attempt,
        handoff=handoff,
        itl_target=None if itl_target is None else to_duration(itl_target),
        priority=priority,
    )


def prompt_request(
    prompt, *, emitted=(), request_id=None, attempt=0, choice=0, itl_target=None, priority=0,
    **values,
):  # fmt: skip
    return decode_pb2.DecodeRequest(
        request_id=request_id or f"request-{next(_numbers)}",
        attempt=attempt,
        prompt=decode_pb2.Prompt(
            prompt_token_ids=prompt,
            emitted_token_ids=emitted,
            sampling=sampling(**values),
            choice=choice,
        ),
        itl_target=None if itl_target is None else to_duration(itl_target),
        priority=priority,
    )


class Stream:
    """What a whole Decode call said."""

    def __init__(self) -> None:
        self.started: decode_pb2.DecodeStarted | None = None
        self.prompt: list[sampling_pb2.SampledToken] | None = None
        self.tokens: list[sampling_pb2.SampledToken] = []
        self.finished: decode_pb2.DecodeFinished | None = None
        self.handed_off: decode_pb2.DecodeHandedOff | None = None

    @property
    def ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]


async def whole(call, *, leaves: bool = False) -> Stream:
    """Reads a Decode call to its end; the events must come in their order. `leaves`: it may end
    with a handoff."""
    stream = Stream()
    async for event in call:
        match event.WhichOneof("event"):
            case "started":
                assert stream.started is None
                stream.started = event.started
            case "prompt":
                assert stream.started is not None
                assert stream.prompt is None
                assert not stream.tokens
                stream.prompt = list(event.prompt.prompt_logprobs)
            case "tokens":
                assert stream.started is not None
                assert stream.finished is None
                stream.tokens += event.tokens.tokens
            case "finished":
                assert stream.finished is None
                stream.finished = event.finished
            case "handed_off":
                assert leaves
                assert stream.finished is None
                assert stream.handed_off is None
                stream.handed_off = event.handed_off
    assert (stream.finished is None) != (stream.handed_off is None)
    return stream


async def whole_rest(call) -> Stream:
    """Reads a Decode call that has begun to its end, a handoff."""
    stream = Stream()
    while (event := await call.read()) is not grpc.aio.EOF:
        assert stream.handed_off is None
        stream.tokens += event.tokens.tokens
        if event.HasField("handed_off"):
            stream.handed_off = event.handed_off
    assert stream.handed_off is not None
    return stream


async def failure_of(call):
    """The error that a call ends with."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError("the call did not fail")


def own_output(engine: Engine, prompt, *, choice=0, **values) -> list[int]:
    """What one engine, alone, generates."""
    key = f"own-{next(_numbers)}"
    params = sampling_params("sampling", sampling(**values), len(prompt), engine.limits)
    engine.admit(Request(key, tuple(prompt), params, choice=choice))
    engine.start(key)
    ids: list[int] = []
    while engine.has_work:
        for output in engine.step():
            ids += [token.token_id for token in output.tokens]
    return ids


def lone_engine(model: Path) -> Engine:
    return Engine.load(
        model,
        EngineConfig(
            dtype=torch.float32, threads=1, block_size=BLOCK, kv_bytes=4 << 20, max_sequences=4,
            max_step_tokens=64,
        ),
    )  # fmt: skip
