"""Sequences through real engines and a real transfer service: the same text as one engine's own,
whatever happens between prefill and decode; and nothing left."""

import asyncio
import mmap
import signal
from pathlib import Path

import grpc
import pytest

from baton.errors import DeadlineExceeded, InvalidRequest, LayoutMismatch, LostRace
from baton.policy.fleet import Role
from baton.v1 import decode_pb2, decode_pb2_grpc, kv_pb2, sampling_pb2
from tests.support.workers import (
    decode_request,
    failure_of,
    first_of,
    local_worker,
    own_output,
    prefill_request,
    prompt_request,
    whole,
)

SEEDED = {"temperature": 1.5, "top_p": 0.95, "seed": 77}


@pytest.mark.parametrize("values", [{}, SEEDED], ids=["greedy", "seeded"])
async def test_prefill_then_decode_equals_one_engine_at_every_length(
    pair, own_engine, prompt_of, values
):
    for length in range(1, 42):
        prompt = prompt_of(length)
        response, stream = await pair.generate(prompt, **values)
        assert [first_of(response).token_id, *stream.ids] == own_output(
            own_engine, prompt, **values
        ), f"prompt of {length} tokens"
        assert stream.started.missing_tokens == 1
        assert stream.started.cached_tokens == length
        assert stream.finished.decoded_tokens == 9
    status = await pair.decode.becomes_clean()
    assert status.recomputed_handoffs == 0
    assert status.fetched_blobs > 0


async def test_streams_side_by_side_do_not_mix(pair, own_engine, prompt_of):
    prompts = [prompt_of(17, n) for n in range(4)]
    results = await asyncio.gather(*(pair.generate(prompt, max_tokens=24) for prompt in prompts))
    for prompt, (response, stream) in zip(prompts, results, strict=True):
        assert [first_of(response).token_id, *stream.ids] == own_output(
            own_engine, prompt, max_tokens=24
        )
    status = await pair.decode.becomes_clean()
    assert sum(status.steps_by_batch_size[2:]) > 0


async def test_a_prompt_is_computed_here(pair, own_engine, prompt_of):
    prompt = prompt_of(23)
    stream = await whole(pair.decode.decode(prompt_request(prompt, logprobs=1)))
    assert stream.ids == own_output(own_engine, prompt)
    assert stream.finished.finish_reason == sampling_pb2.FINISH_REASON_LENGTH
    assert stream.started.cached_tokens == 0
    assert stream.started.missing_tokens == 23
    assert all(token.HasField("logprob") for token in stream.tokens)


async def test_a_prompt_uses_what_prefill_workers_published(pair, own_engine, prompt_of):
    prompt = prompt_of(40)
    response = await pair.prefill.prefill(prefill_request(prompt))
    stream = await whole(pair.decode.decode(prompt_request(prompt)))
    assert stream.ids == own_output(own_engine, prompt)
    assert stream.started.cached_tokens >= 32
    assert stream.started.fetched_blobs > 0
    await pair.transfer.release(response.handoff.lease_id)


@pytest.mark.parametrize("values", [{}, SEEDED], ids=["greedy", "seeded"])
async def test_a_resumed_stream_goes_on_where_it_stopped(pair, own_engine, prompt_of, values):
    prompt = prompt_of(13)
    expected = own_output(own_engine, prompt, **values)
    for emitted in (1, 4, 9):
        stream = await whole(
            pair.decode.decode(prompt_request(prompt, emitted=expected[:emitted], **values))
        )
        assert stream.ids == expected[emitted:]


async def test_a_handoff_from_another_host_is_fetched_by_our_own_transfer_service(
    own_pair, transfer_process, tiny_model, own_engine, prompt_of
):
    prompt = prompt_of(31)
    async with local_worker(Role.PREFILL, tiny_model, transfer_process.address) as elsewhere:
        response = await elsewhere.prefill(prefill_request(prompt))
        assert response.handoff.manifest.transfer_address == transfer_process.address
        stream = await whole(own_pair.decode.decode(decode_request(response.handoff)))
        assert [first_of(response).token_id, *stream.ids] == own_output(own_engine, prompt)
        assert stream.started.cached_tokens == 31
        assert stream.started.fetched_blobs > 0
        await elsewhere.becomes_clean()
    assert (await own_pair.transfer.status()).peer_blobs == stream.started.fetched_blobs
    await transfer_process.release(response.handoff.lease_id)


async def test_a_stop_token_ends_the_stream_and_is_its_last(pair, own_engine, prompt_of):
    prompt = prompt_of(11)
    expected = own_output(own_engine, prompt, max_tokens=32, **SEEDED)
    stop = next(token for token in expected[2:] if token != expected[0])
    until = expected[: expected.index(stop) + 1]
    response, stream = await pair.generate(prompt, max_tokens=32, stop_token_ids=[stop], **SEEDED)
    assert [first_of(response).token_id, *stream.ids] == until
    assert stream.finished.finish_reason == sampling_pb2.FINISH_REASON_STOP


async def test_a_corrupt_blob_is_computed_again(own_pair, own_engine, prompt_of):
    prompt = prompt_of(39)
    response = await own_pair.prefill.prefill(prefill_request(prompt))
    corrupt_before = (await own_pair.transfer.status()).corrupt_blobs
    _flip_every_payload(own_pair)
    stream = await whole(own_pair.decode.decode(decode_request(response.handoff)))
    assert [first_of(response).token_id, *stream.ids] == own_output(own_engine, prompt)
    assert stream.started.missing_tokens > 1
    assert (await own_pair.decode.becomes_clean()).recomputed_handoffs == 1
    assert (await own_pair.transfer.status()).corrupt_blobs > corrupt_before
    await own_pair.transfer.release(response.handoff.lease_id)


def _flip_every_payload(pair) -> None:
    """Changes a byte in each 64 of every segment that are not all zero, headers left whole."""
    paths = list(Path("/dev/shm").glob(f"baton-{pair.transfer.process.pid}-*"))
    assert paths, "the segments were not found"
    for path in paths:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            for offset in range(0, len(memory), 64):
                if any(memory[offset : offset + 64]):
                    memory[offset + 63] ^= 1


async def test_blobs_that_went_are_computed_again(own_pair, own_engine, prompt_of):
    prompt = prompt_of(33)
    response = await own_pair.prefill.prefill(prefill_request(prompt))
    own_pair.transfer.kill()
    stream = await whole(own_pair.decode.decode(decode_request(response.handoff)))
    assert [first_of(response).token_id, *stream.ids] == own_output(own_engine, prompt)
    assert stream.started.missing_tokens == 34
    assert (await own_pair.decode.becomes_clean()).recomputed_handoffs == 1


async def test_a_transfer_service_that_hangs_delays_a_stream_by_seconds_only(
    own_pair, own_engine, prompt_of
):
    prompt = prompt_of(33)
    response = await own_pair.prefill.prefill(prefill_request(prompt))
    own_pair.transfer.signal(signal.SIGSTOP)
    stream = await whole(own_pair.decode.decode(decode_request(response.handoff), timeout=15))
    assert [first_of(response).token_id, *stream.ids] == own_output(own_engine, prompt)


async def test_a_restarted_transfer_service_is_used_again(own_pair, own_engine, prompt_of):
    own_pair.transfer.kill()
    own_pair.transfer.start()
    deadline = asyncio.get_running_loop().time() + 10
    clients = [own_pair.prefill.host.transfer, own_pair.decode.host.transfer]
    while any(client.stats.attachments < 2 for client in clients):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.05)
    prompt = prompt_of(33)
    response, stream = await own_pair.generate(prompt)
    assert [first_of(response).token_id, *stream.ids] == own_output(own_engine, prompt)
    assert stream.started.missing_tokens == 1


@pytest.mark.parametrize("events", [0, 1, 2, 6])
async def test_a_cancelled_stream_leaves_nothing(pair, prompt_of, events):
    response = await pair.prefill.prefill(prefill_request(prompt_of(30), max_tokens=100))
    call = pair.decode.decode(decode_request(response.handoff))
    for _ in range(events):
        await call.read()
    call.cancel()
    await pair.transfer.release(response.handoff.lease_id)
    await pair.becomes_clean()
    if events:
        assert (await pair.decode.status()).cancelled_requests == 1


async def test_a_stream_cancelled_while_it_waits_for_its_kv_leaves_nothing(own_pair, prompt_of):
    response = await own_pair.prefill.prefill(prefill_request(prompt_of(30)))
    own_pair.transfer.signal(signal.SIGSTOP)
    call = own_pair.decode.decode(decode_request(response.handoff))
    while not (await own_pair.decode.status()).waiting_sequences:
        await asyncio.sleep(0.01)
    call.cancel()
    status = await own_pair.decode.becomes_clean()
    assert (status.steps, status.cancelled_requests) == (0, 1)


async def test_the_callers_deadline_ends_a_stream(pair, prompt_of):
    call = pair.decode.decode(prompt_request(prompt_of(9), max_tokens=500), timeout=0.3)
    error = await failure_of(call)
    assert isinstance(error, DeadlineExceeded)
    await pair.decode.becomes_clean()


async def test_a_stream_that_nobody_reads_holds_up_nothing_and_goes_when_cancelled(
    pair, own_engine, prompt_of
):
    narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    channel = grpc.aio.insecure_channel(pair.decode.server.address, options=narrow)
    ignored = decode_pb2_grpc.DecodeServiceStub(channel).Decode(
        prompt_request(prompt_of(9), max_tokens=500, logprobs=20), timeout=20
    )
    await pair.decode.runs()
    prompt = prompt_of(13)
    stream = await whole(pair.decode.decode(prompt_request(prompt)))
    assert stream.ids == own_output(own_engine, prompt)
    while (await pair.decode.status()).running_sequences:
        await asyncio.sleep(0.01)
    status = await pair.decode.status()
    assert status.sampled_tokens == 510
    assert len(status.record.taken) == 1, "all of it fitted into buffers: nothing was held up"
    ignored.cancel()
    status = await pair.decode.becomes_clean()
    assert status.cancelled_requests == 1
    await channel.close()


async def test_a_later_attempt_ends_the_earlier_stream(pair, own_engine, prompt_of):
    prompt = prompt_of(12)
    earlier = pair.decode.decode(prompt_request(prompt, request_id="both", max_tokens=100))
    await anext(aiter(earlier))
    later = pair.decode.decode(prompt_request(prompt, request_id="both", attempt=1))
    stream = await whole(later)
    assert stream.ids == own_output(own_engine, prompt)
    error = await failure_of(earlier)
    assert isinstance(error, LostRace)
    assert error.reason == "SUPERSEDED"


async def test_no_room_is_told_at_once(pair, prompt_of):
    places = pair.decode.host.port.capacity.sequences
    running = [
        pair.decode.decode(prompt_request(prompt_of(9, n), max_tokens=50)) for n in range(places)
    ]
    for call in running:
        await call.read()
    error = await failure_of(pair.decode.decode(prompt_request(prompt_of(9, places))))
    assert isinstance(error, LostRace)
    assert error.reason == "NO_ROOM"
    for call in running:
        call.cancel()


async def test_the_record_tells_what_is_held(pair, prompt_of):
    call = pair.decode.decode(prompt_request(prompt_of(9), request_id="held", max_tokens=50))
    await call.read()
    record = (await pair.decode.status()).record
    assert (record.running.sequences, record.running.kv_tokens) == (1, 59)
    assert [(claim.request_id, claim.attempt) for claim in record.taken] == [("held", 0)]
    call.cancel()


def _handoff(**changes) -> kv_pb2.Handoff:
    handoff = kv_pb2.Handoff(
        request_id="bad",
        prompt_token_ids=[5, 6, 7],
        sampling=sampling_pb2.SamplingParams(seed=1, max_tokens=4),
        choices=[kv_pb2.ChoiceState(emitted=[sampling_pb2.SampledToken(token_id=5)])],
        lease_id="lease",
    )
    handoff.MergeFrom(kv_pb2.Handoff(**changes))
    return handoff


@pytest.mark.parametrize(
    ("field", "request_message"),
    [
        ("start", decode_pb2.DecodeRequest(request_id="bad")),
        ("prompt.prompt_token_ids", prompt_request([])),
        ("prompt.prompt_token_ids[0]", prompt_request([2**32 - 1])),
        ("prompt.sampling.max_tokens", prompt_request([5], max_tokens=10**6)),
        ("prompt.sampling.top_p", prompt_request([5], top_p=float("nan"))),
        ("prompt.emitted_token_ids", prompt_request([5], emitted=[5] * 10)),
        ("handoff.choices", decode_request(_handoff(choices=[kv_pb2.ChoiceState()]))),
        (
            "handoff.choices",
            decode_request(
                kv_pb2.Handoff(
                    request_id="bad",
                    prompt_token_ids=[5],
                    sampling=sampling_pb2.SamplingParams(seed=1, max_tokens=4),
                )
            ),
        ),
        (
            "handoff.choices[0].emitted",
            decode_request(_handoff(sampling=sampling_pb2.SamplingParams(max_tokens=1))),
        ),
        ("itl_target", prompt_request([5], itl_target=0.0)),
        ("prompt.sampling.presence_penalty", prompt_request([5], presence_penalty=3.0)),
        (
            "handoff.manifest.blobs[0].name",
            decode_request(_handoff(manifest=kv_pb2.Manifest(blobs=[kv_pb2.BlobRef(name=b"x")]))),
        ),
        ("handoff.prompt_token_ids[3]", decode_request(_handoff(prompt_token_ids=[2**31]))),
    ],
)
async def test_bad_values_name_their_field_and_never_reach_the_engine(pair, field, request_message):
    error = await failure_of(pair.decode.decode(request_message))
    assert isinstance(error, InvalidRequest)
    assert error.field == field
    assert (await pair.decode.status()).steps == 0


async def test_a_handoff_in_another_layout_is_refused_naming_both(pair, own_engine):
    handoff = _handoff(manifest=kv_pb2.Manifest(layout_fingerprint="f00d"))
    error = await failure_of(pair.decode.decode(decode_request(handoff)))
    assert isinstance(error, LayoutMismatch)
    assert "f00d" in error.message
    assert own_engine.layout.fingerprint in error.message


async def test_another_incarnation_is_told_to_try_elsewhere(pair):
    request = prompt_request([5, 6, 7])
    request.incarnation = "inc-before"
    error = await failure_of(pair.decode.decode(request))
    assert isinstance(error, LostRace)
    assert error.reason == "WRONG_INCARNATION"


async def test_names_that_are_not_of_the_prompt_are_ignored(pair, own_engine, prompt_of):
    prompt, foreign = prompt_of(22), prompt_of(22, 9)
    one = await pair.prefill.prefill(prefill_request(prompt))
    other = await pair.prefill.prefill(prefill_request(foreign))
    handoff = kv_pb2.Handoff.FromString(one.handoff.SerializeToString())
    handoff.manifest.CopyFrom(other.handoff.manifest)
    stream = await whole(pair.decode.decode(decode_request(handoff)))
    assert [first_of(one).token_id, *stream.ids] == own_output(own_engine, prompt)
    assert stream.started.cached_tokens == 0
    for response in (one, other):
        await pair.transfer.release(response.handoff.lease_id)
