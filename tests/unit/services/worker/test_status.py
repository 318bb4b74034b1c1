"""What a worker says of itself, and that it notices what is broken."""

import asyncio

import grpc

from baton.errors import InternalError
from baton.policy.fleet import Claim, Role, Usage
from baton.v1 import kv_pb2, worker_pb2
from engine.types import Request, SamplingParams
from services.worker.runs import Run
from tests.support.workers import BLOCK, failure_of, local_worker, prompt_request, whole


async def test_the_status_counts_the_work(pair, prompt_of):
    await pair.generate(prompt_of(20), max_tokens=5)
    await whole(pair.decode.decode(prompt_request(prompt_of(6), max_tokens=3)))
    prefill, decode = await pair.prefill.status(), await pair.decode.status()
    assert prefill.record.role == worker_pb2.WORKER_ROLE_PREFILL
    assert decode.record.role == worker_pb2.WORKER_ROLE_DECODE
    assert (prefill.prefilled_tokens, prefill.sampled_tokens) == (20, 1)
    assert (decode.sampled_tokens, decode.cached_tokens) == (7, 20)
    assert (prefill.finished_requests, decode.finished_requests) == (1, 2)
    assert decode.steps == 7
    assert sum(decode.steps_by_batch_size) == decode.steps
    assert prefill.published_blobs >= decode.fetched_blobs > 0
    assert (decode.dtype, decode.threads, decode.block_tokens) == ("float32", 1, BLOCK)
    assert decode.resident_bytes > 1 << 20
    assert [group.name for group in decode.kv_groups] == ["full", "window-24"]
    for group in decode.kv_groups:
        assert group.used_blocks == 0
        assert 0 < group.cached_blocks < group.total_blocks
        assert group.block_bytes > 0


async def test_the_record_tells_cost_and_load(pair, tiny_model, prompt_of):
    async with local_worker(
        Role.DECODE, tiny_model, pair.transfer.address, warmup_seconds=1.0
    ) as worker:
        record = (await worker.status()).record
        assert 0 < record.cost.relative_error < 1
        assert record.cost.base_seconds + record.cost.sequence_seconds < 0.5
        assert (record.step_tokens, record.block_tokens, record.index_group) == (8, BLOCK, 0)
        assert record.prompt_lookahead.ToTimedelta().total_seconds() > 0
        status = await worker.becomes_clean()
        assert (status.steps, status.prefilled_tokens, status.sampled_tokens) == (0, 0, 0)
        call = worker.decode(prompt_request(prompt_of(12), max_tokens=300, itl_target=0.5))
        for _ in range(5):
            await call.read()
        load = (await worker.status()).record.load
        assert load.context_tokens >= 12
        assert load.itl_target.ToTimedelta().total_seconds() == 0.5
        assert 1 <= load.sequence_limit <= 4
        assert load.decode_step.ToTimedelta().total_seconds() > 0
        call.cancel()
        await worker.becomes_clean()


async def _names(call, held: set[bytes], until, within_s: float = 5.0) -> None:
    """Follows a watch until `until` holds of the names."""
    async with asyncio.timeout(within_s):
        while not until(held):
            message = await call.read()
            if message.reset:
                held.clear()
            held -= set(message.removed)
            held |= set(message.added)


async def test_watchers_hear_of_the_blocks_that_the_engine_holds(pair, own_engine, prompt_of):
    prompt = prompt_of(20)
    request = Request("names", tuple(prompt), SamplingParams())
    full = set(own_engine.names(request))
    held: set[bytes] = set()
    call = pair.decode.status_stub.WatchBlobs(kv_pb2.WatchBlobsRequest(), timeout=20)
    first = await call.read()
    assert (first.sequence, first.reset, list(first.added)) == (1, True, [])
    await whole(pair.decode.decode(prompt_request(prompt, max_tokens=2)))
    await _names(call, held, lambda names: len(names & full) == 19 // BLOCK)
    late: set[bytes] = set()
    other = pair.decode.status_stub.WatchBlobs(kv_pb2.WatchBlobsRequest(), timeout=20)
    await _names(other, late, lambda names: names == held)
    engine_names = set(pair.decode.host.port._engine.cache_names())
    assert held == engine_names
    call.cancel()
    other.cancel()


async def test_watching_ends_when_the_worker_stops(tiny_model, transfer_process):
    async with local_worker(Role.DECODE, tiny_model, transfer_process.address) as worker:
        call = worker.status_stub.WatchBlobs(kv_pb2.WatchBlobsRequest(), timeout=20)
        assert (await call.read()).reset
        worker.host.port.blobs.close()
        assert await asyncio.wait_for(call.read(), 2) is grpc.aio.EOF


async def test_broken_books_are_named(pair):
    runs = pair.decode.host.runs
    stranger = Run(Claim("stranger", 0), Usage(1, 1), lambda: None)
    runs._running["somebody else"] = stranger
    error = await failure_of(
        pair.decode.status_stub.GetWorkerStatus(
            worker_pb2.GetWorkerStatusRequest(check_integrity=True), timeout=5
        )
    )
    assert isinstance(error, InternalError)
    assert "somebody else" in error.message
    del runs._running["somebody else"]


async def test_a_broken_engine_is_named(pair):
    budget = pair.decode.host.port._engine._cache._budget
    budget.promise(8)
    error = await failure_of(
        pair.decode.status_stub.GetWorkerStatus(
            worker_pb2.GetWorkerStatusRequest(check_integrity=True), timeout=5
        )
    )
    assert isinstance(error, InternalError)
    assert error.reason == "INTEGRITY"
    budget.give_back(8)


async def test_the_status_tells_work_by_phase_and_what_the_device_can_do(
    pair, tiny_model, prompt_of
):
    address = pair.transfer.address
    async with local_worker(Role.DECODE, tiny_model, address, measure_peaks=True) as worker:
        await whole(worker.decode(prompt_request(prompt_of(8), max_tokens=5)))
        status = await worker.becomes_clean()
    phases = {one.phase: one for one in status.phases}
    prefill, decode = (
        phases[worker_pb2.STEP_PHASE_PREFILL], phases[worker_pb2.STEP_PHASE_DECODE]
    )  # fmt: skip
    assert (prefill.steps, prefill.prompt_tokens, prefill.sequences) == (1, 8, 0)
    assert (decode.steps, decode.sequences) == (4, 4)
    assert decode.context_tokens == 9 + 10 + 11 + 12
    assert prefill.flops > decode.flops > 0
    assert 0 < prefill.bytes < decode.bytes
    assert prefill.busy.ToNanoseconds() > 0
    assert status.peaks.flops_per_second > 0
    assert status.peaks.bytes_per_second > 0
    assert not (await pair.decode.status()).HasField("peaks")
