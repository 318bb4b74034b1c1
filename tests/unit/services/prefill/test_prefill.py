"""Prompts through a real engine and a real transfer service: what comes out, what is left."""

import asyncio
import signal

import pytest

from baton.errors import InvalidRequest, LayoutMismatch, LostRace, Unavailable
from baton.policy.fleet import Role
from baton.v1 import sampling_pb2
from tests.support.workers import (
    BLOCK,
    failure_of,
    first_of,
    local_worker,
    own_output,
    prefill_request,
)


async def test_the_handoff_holds_what_a_decode_worker_needs(pair, own_engine, prompt_of):
    prompt = prompt_of(30)
    request = prefill_request(prompt, logprobs=2)
    response = await pair.prefill.prefill(request)
    handoff = response.handoff
    assert not response.first_tokens[0].finish_reason
    assert first_of(response).token_id == own_output(own_engine, prompt)[0]
    assert len(first_of(response).top_logprobs) == 2
    assert list(handoff.prompt_token_ids) == prompt
    assert handoff.sampling == request.sampling
    assert [list(choice.emitted) for choice in handoff.choices] == [[first_of(response)]]
    assert (handoff.request_id, handoff.attempt) == (request.request_id, request.attempt)
    assert handoff.lease_id == request.lease_id
    manifest = handoff.manifest
    assert manifest.layout_fingerprint == own_engine.layout.fingerprint
    assert manifest.length_tokens == 30
    for group in range(len(own_engine.layout.groups)):
        indices = {blob.block_index for blob in manifest.blobs if blob.group == group}
        assert indices >= set(own_engine.layout.blocks_for(group, 30))
    assert [b.used_tokens for b in manifest.blobs if b.block_index == 30 // BLOCK] == [
        30 % BLOCK for _ in own_engine.layout.groups
    ]
    status = await pair.transfer.status()
    assert status.leased_blobs == len(manifest.blobs)
    await pair.transfer.release(request.lease_id)


async def test_cached_and_computed_tokens_add_up_to_the_prompt(pair, prompt_of):
    prompt = prompt_of(21)
    first = await pair.prefill.prefill(prefill_request(prompt))
    again = await pair.prefill.prefill(prefill_request([*prompt, *prompt_of(5)]))
    assert (first.stats.cached_tokens, first.stats.computed_tokens) == (0, 21)
    assert (again.stats.cached_tokens, again.stats.computed_tokens) == (20, 6)
    assert first.stats.published_blobs == len(first.handoff.manifest.blobs)
    assert first.stats.published_bytes > 0
    assert first.stats.computing.ToMicroseconds() > 0
    for response in (first, again):
        await pair.transfer.release(response.handoff.lease_id)


async def test_what_another_worker_published_is_not_computed_again(
    pair, tiny_model, own_engine, prompt_of
):
    prompt = prompt_of(40)
    first = await pair.prefill.prefill(prefill_request(prompt))
    async with local_worker(Role.PREFILL, tiny_model, pair.transfer.address) as other:
        again = await other.prefill(prefill_request(prompt))
        await other.becomes_clean()
    assert again.stats.cached_tokens >= 32
    assert first_of(again) == first_of(first)
    assert {b.name for b in again.handoff.manifest.blobs} >= {
        b.name
        for b in first.handoff.manifest.blobs
        if b.block_index in own_engine.layout.blocks_for(b.group, 40)
    }
    for response in (first, again):
        await pair.transfer.release(response.handoff.lease_id)


@pytest.mark.parametrize("end", ["stop token", "max_tokens"])
async def test_no_handoff_when_the_first_token_ends_the_output(pair, own_engine, prompt_of, end):
    prompt = prompt_of(14)
    token = own_output(own_engine, prompt)[0]
    values = {"stop_token_ids": [token]} if end == "stop token" else {"max_tokens": 1}
    response = await pair.prefill.prefill(prefill_request(prompt, **values))
    assert first_of(response).token_id == token
    assert not response.HasField("handoff")
    expected = "FINISH_REASON_STOP" if end == "stop token" else "FINISH_REASON_LENGTH"
    assert sampling_pb2.FinishReason.Name(response.first_tokens[0].finish_reason) == expected


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("request_id", {"request_id": ""}),
        ("lease_id", {"lease_id": ""}),
        ("prompt_token_ids", {"prompt_token_ids": []}),
        ("prompt_token_ids[1]", {"prompt_token_ids": [5, 2**32 - 1]}),
        ("prompt_token_ids", {"prompt_token_ids": [5] * 100_000}),
        ("tenant_salt", {"tenant_salt": b"x" * 65}),
        ("choices", {"choices": 129}),
        ("sampling.repetition_penalty", {"sampling": {"repetition_penalty": 0.0}}),
        ("sampling.logit_bias[7]", {"sampling": {"logit_bias": {7: 101.0}}}),
        ("sampling.temperature", {"sampling": {"temperature": float("nan")}}),
        ("sampling.max_tokens", {"sampling": {"max_tokens": 2**31}}),
    ],
)
async def test_bad_values_name_their_field_and_never_reach_the_engine(pair, field, change):
    request = prefill_request([5, 6, 7])
    for name, value in change.items():
        request.ClearField(name)
        if isinstance(value, dict):
            request.sampling.CopyFrom(
                sampling_pb2.SamplingParams(**({"seed": 1, "max_tokens": 4} | value))
            )
        elif isinstance(value, list):
            request.prompt_token_ids.extend(value)
        else:
            setattr(request, name, value)
    error = await failure_of(pair.prefill.prefill(request))
    assert isinstance(error, InvalidRequest)
    assert error.field == field
    assert (await pair.prefill.status()).steps == 0


async def test_another_incarnation_is_told_to_try_elsewhere(pair):
    request = prefill_request([5, 6, 7])
    request.incarnation = "inc-before"
    error = await failure_of(pair.prefill.prefill(request))
    assert isinstance(error, LostRace)
    assert error.reason == "WRONG_INCARNATION"


async def test_another_layout_is_refused_naming_both(pair, own_engine):
    request = prefill_request([5, 6, 7])
    request.layout_fingerprint = "f00d"
    error = await failure_of(pair.prefill.prefill(request))
    assert isinstance(error, LayoutMismatch)
    assert "f00d" in error.message
    assert own_engine.layout.fingerprint in error.message


async def test_no_room_is_told_at_once(pair, prompt_of):
    places = pair.prefill.host.port.capacity.sequences
    calls = [
        asyncio.ensure_future(_answer(pair.prefill.prefill(prefill_request(prompt_of(200, n)))))
        for n in range(places + 1)
    ]
    results = await asyncio.gather(*calls)
    refused = [result for result in results if isinstance(result, LostRace)]
    assert [error.reason for error in refused] == ["NO_ROOM"]
    assert (await pair.prefill.becomes_clean()).refused_requests == 1
    for result in results:
        if not isinstance(result, LostRace):
            await pair.transfer.release(result.handoff.lease_id)


async def _answer(call):
    try:
        return await call
    except Exception:  # noqa: BLE001 - which one, the test checks
        return await failure_of(call)


@pytest.mark.parametrize("steps", [0, 1, 3, 8])
async def test_a_cancelled_prompt_stops_computing_and_leaves_nothing(pair, prompt_of, steps):
    request = prefill_request(prompt_of(400))
    before = (await pair.prefill.status()).steps
    call = pair.prefill.prefill(request)
    pending = asyncio.ensure_future(failure_of(call))
    while (await pair.prefill.status(check_integrity=False)).steps < before + steps:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    status = await pair.prefill.becomes_clean()
    assert status.steps < before + 50
    assert status.cancelled_requests == 1
    await pair.becomes_clean()


async def test_a_prompt_cancelled_while_the_transfer_service_hangs_at_a_look_up_leaves_nothing(
    own_pair, prompt_of
):
    own_pair.transfer.signal(signal.SIGSTOP)
    call = own_pair.prefill.prefill(prefill_request(prompt_of(400)))
    async with asyncio.timeout(10):
        while not own_pair.prefill.host.runs.count:
            await asyncio.sleep(0.01)
    call.cancel()
    assert (await own_pair.prefill.becomes_clean()).cancelled_requests == 1


async def test_a_prompt_cancelled_while_the_transfer_service_hangs_at_publishing_leaves_nothing(
    own_pair, prompt_of, monkeypatch
):
    worker = own_pair.prefill
    publish, cancelled = worker.host.transfer.publish, asyncio.Event()

    async def hangs(*arguments):
        while (await worker.status(check_integrity=False)).sampled_tokens == 0:
            await asyncio.sleep(0.01)
        # All is computed. From here, the worker soon gives up a service that says nothing.
        own_pair.transfer.signal(signal.SIGSTOP)
        call.cancel()
        cancelled.set()
        return await publish(*arguments)

    monkeypatch.setattr(worker.host.transfer, "publish", hangs)
    call = worker.prefill(prefill_request(prompt_of(400)))
    async with asyncio.timeout(15):
        await cancelled.wait()
    assert (await worker.becomes_clean()).cancelled_requests == 1


async def test_a_later_attempt_ends_the_earlier_one(pair, prompt_of):
    prompt = prompt_of(400)
    earlier = pair.prefill.prefill(prefill_request(prompt, request_id="both", attempt=0))
    ended = asyncio.ensure_future(failure_of(earlier))
    await pair.prefill.runs()
    later = await pair.prefill.prefill(prefill_request(prompt, request_id="both", attempt=1))
    error = await ended
    assert isinstance(error, LostRace)
    assert error.reason == "SUPERSEDED"
    assert later.handoff.attempt == 1
    late = await failure_of(
        pair.prefill.prefill(prefill_request(prompt, request_id="both", attempt=0))
    )
    assert isinstance(late, LostRace)
    await pair.transfer.release(later.handoff.lease_id)


async def test_blocks_are_published_while_the_prompt_still_computes(pair, prompt_of):
    call = pair.prefill.prefill(prefill_request(prompt_of(400, 1)))
    pending = asyncio.ensure_future(call.code())
    before = (await pair.transfer.status()).committed_blobs
    seen_running = False
    while not seen_running and not pending.done():
        published = (await pair.transfer.status()).committed_blobs > before
        status = await pair.prefill.status()
        seen_running = published and status.running_sequences == 1
    assert seen_running, "no blob was committed before the prompt's end"
    await pair.transfer.release((await call).handoff.lease_id)


async def test_a_drained_worker_refuses_and_lets_running_prompts_finish(pair, prompt_of):
    call = pair.prefill.prefill(prefill_request(prompt_of(480, 2)))
    pending = asyncio.ensure_future(call.code())
    await pair.prefill.runs()
    pair.prefill.host.refuse_new()
    error = await failure_of(pair.prefill.prefill(prefill_request([5, 6, 7])))
    assert isinstance(error, Unavailable)
    assert error.reason == "DRAINING"
    assert (await pair.prefill.status()).record.draining
    await pending
    await pair.transfer.release((await call).handoff.lease_id)


async def test_without_the_transfer_service_a_prompt_is_computed_all_the_same(
    own_pair, own_engine, prompt_of
):
    own_pair.transfer.kill()
    prompt = prompt_of(20)
    response = await own_pair.prefill.prefill(prefill_request(prompt))
    assert first_of(response).token_id == own_output(own_engine, prompt)[0]
    assert list(response.handoff.manifest.blobs) == []


async def test_a_transfer_service_that_hangs_delays_a_prompt_by_seconds_only(
    own_pair, own_engine, prompt_of
):
    own_pair.transfer.signal(signal.SIGSTOP)
    prompt = prompt_of(20)
    response = await own_pair.prefill.prefill(prefill_request(prompt), timeout=15)
    assert first_of(response).token_id == own_output(own_engine, prompt)[0]
