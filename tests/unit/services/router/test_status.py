"""The report over real gRPC servers, some of which are broken or silent."""

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from baton import errors
from baton.policy.fleet import Role, Usage
from baton.v1 import transfer_pb2, transfer_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.common import rpc
from services.common.background import Background
from services.common.fleet.record import to_record
from services.router.channels import Channels
from services.router.register import Register
from services.router.report import Outcome
from services.router.status import FleetStatus
from tests.support.router_parts import worker


class Process(worker_pb2_grpc.WorkerServiceServicer, transfer_pb2_grpc.TransferServiceServicer):
    """A worker and a transfer service in one."""

    def __init__(self, problem=None):
        self.problem = problem
        self.checks = []

    async def GetWorkerStatus(self, request, context):
        await self._answer(request)
        return worker_pb2.GetWorkerStatusResponse(steps=7)

    async def GetTransferStatus(self, request, context):
        await self._answer(request)
        return transfer_pb2.GetTransferStatusResponse(blobs=9)

    async def _answer(self, request):
        self.checks.append(request.check_integrity)
        if self.problem == "silent":
            await asyncio.sleep(30)
        if self.problem is not None:
            raise self.problem


@pytest.fixture
async def serve():
    servers = []

    async def start(process):
        running = await rpc.serve(
            "127.0.0.1:0",
            [
                lambda s: worker_pb2_grpc.add_WorkerServiceServicer_to_server(process, s),
                lambda s: transfer_pb2_grpc.add_TransferServiceServicer_to_server(process, s),
            ],
            [],
        )
        servers.append(running)
        return running.address

    yield start
    for server in servers:
        await server.stop(0)


class Fleet:
    """A fleet view with these workers."""

    def __init__(self, *workers):
        self.workers = workers
        self.redis_available = True
        self.snapshot = SimpleNamespace(waiting=3, turns=2, claims=1, queued_s=4.25)
        self.degraded = "no decode worker is there"
        self.refreshed = 0

    async def refresh(self):
        self.refreshed += 1


class Dispatch:
    broken = False

    def check_integrity(self):
        if self.broken:
            raise errors.InternalError("the books are wrong")


@pytest.fixture
async def channels():
    channels = Channels(Background())
    yield channels
    await channels.close()


@pytest.fixture
def status(channels):
    def make(fleet, dispatch=None, register=None, **more):
        parts = (dispatch or Dispatch(), register or Register(5), [1, 2])
        return FleetStatus("router-1", channels, fleet, *parts, **more)

    return make


async def test_everyone_is_asked(serve, status):
    process = Process()
    address = await serve(process)
    workers = [
        replace(worker(role, address=address), transfer_address=address, pending=Usage(2, 50))
        for role in Role
    ]
    fleet = Fleet(*workers)
    report = await status(fleet).ask(check_integrity=True)
    assert fleet.refreshed == 1
    assert [one.record for one in report.workers] == [to_record(one) for one in workers]
    assert [one.status.steps for one in report.workers] == [7, 7]
    assert [one.pending_claims for one in report.workers] == [2, 2]
    assert [(one.address, one.status.blobs) for one in report.transfers] == [(address, 9)]
    assert process.checks == [True] * 3
    queue = report.queue
    assert (queue.waiting, queue.turns, queue.claims, queue.redis_available) == (3, 2, 1, True)
    assert (queue.queued_work.ToSeconds(), queue.queued_work.nanos) == (4, 250_000_000)
    assert queue.degraded == "no decode worker is there"
    assert (report.router.router_id, report.router.leases) == ("router-1", 2)
    assert report.router.pid > 0
    assert report.router.resident_bytes > 1_000_000


async def test_silent_broken_and_missing_ones_are_in_the_report_too(serve, status):
    silent, broken = Process("silent"), Process(errors.InternalError("block 3 is lost"))
    addresses = [await serve(silent), await serve(broken), "127.0.0.1:1"]
    workers = [
        replace(worker(Role.DECODE, number, address=address), transfer_address=address)
        for number, address in enumerate(addresses)
    ]
    started = time.monotonic()
    report = await status(Fleet(*workers)).ask(check_integrity=False)
    assert time.monotonic() - started < 6.0
    assert len(report.workers) == len(report.transfers) == 3
    for one in (*report.workers, *report.transfers):
        assert not one.HasField("status")
    errors_told = [one.error for one in report.workers]
    assert errors_told[0].startswith("DEADLINE_EXCEEDED")
    assert errors_told[1] == "INTERNAL: block 3 is lost"
    assert errors_told[2].startswith("UNAVAILABLE")
    assert silent.checks == [False, False]


async def test_without_a_snapshot_the_queue_is_unknown(status):
    fleet = Fleet()
    fleet.snapshot, fleet.redis_available = None, False
    report = await status(fleet).ask(check_integrity=False)
    assert not report.queue.redis_available
    assert report.queue.waiting == 0


async def test_broken_books_of_the_router_itself(status):
    dispatch = Dispatch()
    dispatch.broken = True
    await status(Fleet(), dispatch).ask(check_integrity=False)
    with pytest.raises(errors.InternalError):
        await status(Fleet(), dispatch).ask(check_integrity=True)


async def test_the_routers_counters(status):
    told = {
        "retried_legs": "retried_legs",
        "resumed": "resumed_sequences",
        "recomputed": "recomputed_sequences",
        "migrated": "migrated_sequences",
        "degraded": "degraded_requests",
        "local": "local_prompts",
        "ttft_held": "ttft_held",
        "itl_held": "itl_held",
    }
    register = Register(5)
    for number, name in enumerate(told, 1):
        setattr(register.counters, name, number)
    for number, outcome in enumerate(Outcome, 1):
        register.counters.ended[outcome, "one"] = number
        register.counters.ended[outcome, "another"] = 10
    report = await status(Fleet(), register=register, indexed_blobs=lambda: 99).ask(False)
    assert [getattr(report.router, field) for field in told.values()] == [*range(1, 9)]
    for number, outcome in enumerate(Outcome, 1):
        assert getattr(report.router, f"{outcome.value}_requests") == 10 + number
    assert report.router.indexed_blobs == 99
    assert (await status(Fleet()).ask(False)).router.indexed_blobs == 0
