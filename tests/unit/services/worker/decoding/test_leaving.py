"""Sequences that a worker lets go of: they go on elsewhere from where they were, and nothing of
them is left."""

import asyncio

import pytest

from baton.errors import LostRace, Unavailable
from baton.policy.fleet import Role
from baton.v1 import decode_pb2, kv_pb2
from tests.support.workers import (
    decode_request,
    failure_of,
    first_of,
    local_worker,
    own_output,
    prefill_request,
    prompt_request,
    whole,
    whole_rest,
)

SEEDED = {"temperature": 1.5, "top_p": 0.95, "seed": 77}


async def tokens_of(call, count: int) -> list[int]:
    """The ids of the next `count` tokens of a stream."""
    ids: list[int] = []
    while len(ids) < count:
        event = await call.read()
        ids += [token.token_id for token in event.tokens.tokens]
    return ids


async def resumed(worker, handoff: kv_pb2.Handoff, **values):
    attempt = handoff.attempt + 1
    return await whole(worker.decode(decode_request(handoff, attempt=attempt, **values)))


@pytest.mark.parametrize("values", [{}, SEEDED], ids=["greedy", "seeded"])
async def test_a_draining_workers_sequence_goes_on_elsewhere_token_for_token(
    pair, own_engine, prompt_of, values
):
    prompt = prompt_of(22)
    values = values | {"max_tokens": 300, "logprobs": 1}
    call = pair.decode.decode(prompt_request(prompt, request_id="moves", choice=2, **values))
    before = await tokens_of(call, 7)
    pair.decode.host.drain()
    left = await whole_rest(call)
    handoff = left.handed_off.handoff
    assert left.handed_off.reason == decode_pb2.HANDOFF_REASON_DRAINING
    assert (handoff.request_id, handoff.attempt, list(handoff.prompt_token_ids)) == (
        "moves", 0, prompt,
    )  # fmt: skip
    (choice,) = handoff.choices
    emitted = [token.token_id for token in choice.emitted]
    assert (choice.index, emitted) == (2, before + left.ids)
    assert all(token.HasField("logprob") for token in choice.emitted)
    assert handoff.manifest.length_tokens == len(prompt) + len(emitted) - 1
    assert handoff.manifest.transfer_address == pair.transfer.address
    status = await pair.decode.becomes_clean()
    assert (status.drained_sequences, status.finished_requests) == (1, 0)
    stream = await resumed(pair.prefill, handoff)
    assert stream.started.missing_tokens == 1
    assert emitted + stream.ids == own_output(own_engine, prompt, choice=2, **values)
    assert (await pair.prefill.status()).recomputed_handoffs == 0
    await pair.transfer.release(handoff.lease_id)


async def test_a_handed_over_sequence_can_be_handed_over_again(
    pair, tiny_model, own_engine, prompt_of
):
    prompt = prompt_of(19)
    response = await pair.prefill.prefill(prefill_request(prompt, max_tokens=300))
    call = pair.decode.decode(decode_request(response.handoff))
    await tokens_of(call, 5)
    pair.decode.host.drain()
    first = (await whole_rest(call)).handed_off.handoff
    call = pair.prefill.decode(decode_request(first, attempt=1))
    await tokens_of(call, 5)
    pair.prefill.host.drain()
    second = (await whole_rest(call)).handed_off.handoff
    assert (first.attempt, second.attempt) == (0, 1)
    assert second.lease_id != first.lease_id != response.handoff.lease_id
    emitted = [token.token_id for token in second.choices[0].emitted]
    assert emitted[0] == first_of(response).token_id
    async with local_worker(Role.DECODE, tiny_model, pair.transfer.address) as third:
        stream = await resumed(third, second)
    assert stream.started.missing_tokens == 1
    assert emitted + stream.ids == own_output(own_engine, prompt, max_tokens=300)
    for handoff in (response.handoff, first, second):
        await pair.transfer.release(handoff.lease_id)


async def test_a_sequence_that_still_computes_its_prompt_moves_without_a_token(
    pair, own_engine, prompt_of
):
    prompt = prompt_of(400)
    call = pair.decode.decode(prompt_request(prompt))
    assert (await call.read()).HasField("started")
    while (await pair.decode.status(check_integrity=False)).prefilled_tokens < 50:
        await asyncio.sleep(0.001)
    pair.decode.host.drain()
    left = await whole_rest(call)
    assert left.ids == []
    handoff = left.handed_off.handoff
    assert not handoff.choices[0].emitted
    assert 50 <= handoff.manifest.length_tokens < 400
    stream = await resumed(pair.prefill, handoff)
    assert stream.ids == own_output(own_engine, prompt)
    assert stream.started.cached_tokens >= 48
    assert (await pair.prefill.status()).recomputed_handoffs == 0
    await pair.transfer.release(handoff.lease_id)


async def test_a_sequence_that_has_not_begun_is_sent_elsewhere_with_the_handoff_it_came_with(
    own_pair, own_engine, prompt_of
):
    prompt = prompt_of(30)
    response = await own_pair.prefill.prefill(prefill_request(prompt))
    gate = asyncio.Event()
    fetch = own_pair.decode.host.transfer.fetch

    async def slow_fetch(*args, **kwargs):
        await gate.wait()
        return await fetch(*args, **kwargs)

    own_pair.decode.host.sequences._transfer = _With(own_pair.decode.host.transfer, slow_fetch)
    call = own_pair.decode.decode(decode_request(response.handoff))
    while not (await own_pair.decode.status()).waiting_sequences:
        await asyncio.sleep(0.005)
    own_pair.decode.host.drain()
    error = await failure_of(call)
    assert isinstance(error, Unavailable)
    assert error.reason == "DRAINING"
    await own_pair.decode.becomes_clean()
    stream = await resumed(own_pair.prefill, response.handoff)
    assert stream.started.missing_tokens == 1
    assert [first_of(response).token_id, *stream.ids] == own_output(own_engine, prompt)
    await own_pair.transfer.release(response.handoff.lease_id)


class _With:
    """A transfer client whose fetches are another's."""

    def __init__(self, client, fetch):
        self._client = client
        self.fetch = fetch

    def __getattr__(self, name):
        return getattr(self._client, name)


async def test_prompts_are_finished_by_a_worker_that_drains(pair, own_engine, prompt_of):
    prompt = prompt_of(400)
    reading = asyncio.ensure_future(pair.prefill.prefill(prefill_request(prompt)))
    await pair.prefill.runs()
    pair.prefill.host.drain()
    response = await reading
    stream = await whole(pair.decode.decode(decode_request(response.handoff)))
    assert [first_of(response).token_id, *stream.ids] == own_output(own_engine, prompt)
    assert isinstance(await failure_of(pair.prefill.prefill(prefill_request(prompt))), Unavailable)
    await pair.transfer.release(response.handoff.lease_id)


async def test_what_lacks_blocks_is_preempted_and_all_of_them_end_as_if_alone(
    pair, tiny_model, own_engine, prompt_of
):
    prompts = [prompt_of(20, n) for n in range(4)]
    room = {"kv_bytes": 1_000_000, "growth_tokens": 8}
    async with local_worker(Role.DECODE, tiny_model, pair.transfer.address, **room) as small:
        life = 20 + 300
        capacity = small.host.port.capacity
        assert capacity.sequences == 4
        assert life < capacity.kv_tokens < 4 * life, "some have to leave"
        streams = await asyncio.gather(
            *(
                whole(small.decode(prompt_request(one, max_tokens=300, priority=n)), leaves=True)
                for n, one in enumerate(prompts)
            )
        )
        left = [one for one in streams if one.handed_off is not None]
        assert left
        assert streams[3].finished is not None, "the most important one stays"
        assert {one.handed_off.reason for one in left} == {decode_pb2.HANDOFF_REASON_PREEMPTED}
        status = await small.becomes_clean()
        assert status.preempted_sequences == len(left)
        assert status.finished_requests == 4 - len(left)
        for prompt, stream in zip(prompts, streams, strict=True):
            ids = stream.ids
            while stream.handed_off is not None:
                handoff = stream.handed_off.handoff
                stream = await whole(
                    small.decode(decode_request(handoff, attempt=handoff.attempt + 1)),
                    leaves=True,
                )
                assert stream.started.missing_tokens == 1
                ids += stream.ids
                await pair.transfer.release(handoff.lease_id)
            assert ids == own_output(own_engine, prompt, max_tokens=300)
        assert (await small.becomes_clean()).recomputed_handoffs == 0


async def test_the_room_told_to_the_fleet_grows_with_the_sequence(pair, tiny_model, prompt_of):
    async with local_worker(
        Role.DECODE, tiny_model, pair.transfer.address, growth_tokens=16
    ) as worker:
        call = worker.decode(prompt_request(prompt_of(10), max_tokens=60))
        assert (await call.read()).HasField("started")
        seen = set()
        for _ in range(55):
            await tokens_of(call, 1)
            promised = (await worker.host.port.status()).held_tokens
            told = worker.host.runs.usage.kv_tokens
            assert told >= promised
            if worker.host.runs.count:  # else it ended before all its tokens were read
                seen.add(told)
        assert min(seen) == 26
        assert max(seen) == 70
        call.cancel()
        await worker.becomes_clean()


async def test_a_caller_that_is_gone_leaves_no_lease(own_pair, prompt_of):
    call = own_pair.decode.decode(prompt_request(prompt_of(22), max_tokens=300))
    await tokens_of(call, 3)
    publishing, go_on = asyncio.Event(), asyncio.Event()
    client = own_pair.decode.host.transfer
    publish = client.publish

    async def held_up(*args, **kwargs):
        names = await publish(*args, **kwargs)
        publishing.set()
        await go_on.wait()
        return names

    client.publish = held_up
    own_pair.decode.host.drain()
    await asyncio.wait_for(publishing.wait(), 5)
    assert (await own_pair.transfer.status()).leased_blobs > 0
    call.cancel()
    await own_pair.decode.becomes_clean()
    while (await own_pair.transfer.status()).leases:
        await asyncio.sleep(0.01)


async def test_what_could_not_be_published_is_computed_by_who_goes_on(
    own_pair, own_engine, prompt_of
):
    prompt = prompt_of(22)
    call = own_pair.decode.decode(prompt_request(prompt, max_tokens=300))
    before = await tokens_of(call, 3)
    own_pair.transfer.kill()
    own_pair.decode.host.drain()
    left = await whole_rest(call)
    handoff = left.handed_off.handoff
    assert not handoff.manifest.blobs
    stream = await resumed(own_pair.prefill, handoff)
    assert [*before, *left.ids, *stream.ids] == own_output(own_engine, prompt, max_tokens=300)
    assert (await own_pair.prefill.becomes_clean()).recomputed_handoffs == 1


async def test_a_prefill_worker_decodes_beside_its_prompts(pair, own_engine, prompt_of):
    prompt, other = prompt_of(25), prompt_of(33, 1)
    stream, response = await asyncio.gather(
        whole(pair.prefill.decode(prompt_request(prompt, max_tokens=40))),
        pair.prefill.prefill(prefill_request(other)),
    )
    assert stream.ids == own_output(own_engine, prompt, max_tokens=40)
    rest = await whole(pair.prefill.decode(decode_request(response.handoff)))
    assert [first_of(response).token_id, *rest.ids] == own_output(own_engine, other)
    assert (await pair.prefill.status()).local_prompts == 1
    await pair.transfer.release(response.handoff.lease_id)


async def test_the_tightest_target_is_told_while_its_sequence_runs(pair, prompt_of):
    calls = [
        pair.decode.decode(prompt_request(prompt_of(9, n), max_tokens=400, itl_target=target))
        for n, target in enumerate([0.5, None, 0.2])
    ]
    for call in calls:
        await tokens_of(call, 1)
    load = pair.decode.host.load.load()
    assert load.itl_target_s == pytest.approx(0.2)
    assert load.sequence_limit is not None
    assert 1 <= load.sequence_limit <= 4
    assert load.context_tokens >= 3 * 10
    for call in calls:
        call.cancel()
    await pair.decode.becomes_clean()
    assert pair.decode.host.load.load().itl_target_s is None


async def test_a_prompt_that_lost_its_blocks_is_tried_elsewhere(pair, prompt_of):
    """Only where nothing else can make room does a prefill worker let go of a prompt."""
    reading = asyncio.ensure_future(pair.prefill.prefill(prefill_request(prompt_of(400))))
    await pair.prefill.runs()
    port = pair.prefill.host.port
    (key,) = port.outbox._streams
    await asyncio.wrap_future(port._thread.call(lambda engine: _preempt(engine, key)))
    error = await failure_of(reading)
    assert isinstance(error, LostRace)
    assert error.reason == "NO_ROOM"


def _preempt(engine, key: str) -> None:
    engine._preempt(engine._sequences[key])
    engine._changed()
