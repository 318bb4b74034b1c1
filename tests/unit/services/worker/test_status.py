"""What a worker says of itself, and that it notices what is broken."""

from baton.errors import InternalError
from baton.policy.fleet import Claim, Usage
from baton.v1 import worker_pb2
from services.worker.runs import Run
from tests.support.workers import BLOCK, failure_of, prompt_request, whole


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
