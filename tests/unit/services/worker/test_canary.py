"""A handoff that is computed again says the same, or is noticed; and it is in nobody's way."""

import asyncio
import math
import time

import pytest

from baton.drift import alarming_drift
from baton.policy.fleet import Role
from engine.errors import LoopStopped
from engine.types import SampledToken
from services.worker.canary import drift_between
from services.worker.sequences import Sequences
from tests.support.workers import (
    BLOCK,
    decode_request,
    local_worker,
    prefill_request,
    prompt_request,
    whole,
)

EVERY_ONE = {"canary_ratio": 1.0}
ROUNDING = 1e-4


@pytest.fixture
async def watched(pair, tiny_model):
    """A decode worker that looks at each handoff, beside the pair."""
    address = pair.transfer.address
    async with local_worker(Role.DECODE, tiny_model, address, **EVERY_ONE) as worker:
        yield worker
        await worker.becomes_clean()


async def hand_over(pair, worker, prompt, **values):
    response = await pair.prefill.prefill(prefill_request(prompt, **values))
    stream = await whole(worker.decode(decode_request(response.handoff)))
    await pair.transfer.release(response.handoff.lease_id)
    return stream


async def ended(worker, within_s=10.0):
    """The status once no canary runs."""
    deadline = time.monotonic() + within_s
    while worker.host.canary.running:
        assert time.monotonic() < deadline, "the canary does not end"
        await asyncio.sleep(0.01)
    return await worker.becomes_clean()


async def test_kv_that_was_handed_over_says_what_kv_computed_here_says(pair, watched, prompt_of):
    drifts = []
    watched.host.canary.on_drift = drifts.append
    for length in (30, 41):
        await hand_over(pair, watched, prompt_of(length))
        status = await ended(watched)
    assert status.canaries == len(drifts) == 2
    assert max(drifts) == status.canary_drift < ROUNDING
    assert watched.host.canary.alarms == 0
    # Nothing of it is counted as anybody's work.
    assert (status.prefilled_tokens, status.sampled_tokens) == (0, 2 * 9)
    assert status.cached_tokens == 30 + 41
    assert status.finished_requests == 2


class Corrupting:
    """A transfer client whose fetched bytes are broken after they were checked."""

    def __init__(self, transfer):
        self._transfer = transfer

    def __getattr__(self, name):
        return getattr(self._transfer, name)

    async def fetch(self, blobs, *args, **kwargs):
        filled = await self._transfer.fetch(blobs, *args, **kwargs)
        for blob in blobs:
            last = blob.into.nbytes
            for place in range(3, last, 4):  # the signs of all numbers
                blob.into[place] ^= 0x80
        return filled


async def test_broken_kv_is_seen(pair, watched, prompt_of, caplog):
    host = watched.host
    on_prompt = host.sequences.on_prompt
    host.sequences = Sequences(host.port, Corrupting(host.transfer), host.background, 2.0)
    host.sequences.on_prompt = on_prompt
    await hand_over(pair, watched, prompt_of(33))
    status = await ended(watched)
    assert status.canaries == 1
    assert status.canary_drift > alarming_drift("float32")
    assert host.canary.alarms == 1
    assert "differ by up to" in caplog.text


async def test_none_where_nothing_was_handed_over_or_it_is_too_short(pair, watched, prompt_of):
    await whole(watched.decode(prompt_request(prompt_of(30))))
    await hand_over(pair, watched, prompt_of(BLOCK - 1))
    assert (await ended(watched)).canaries == 0


async def test_it_gives_way_to_a_prompt_and_gives_everything_back(pair, watched, prompt_of):
    canary = watched.host.canary
    began = asyncio.Event()
    compare = canary._compare

    async def slow(request):
        await canary._next_token(request, request.salt)
        began.set()
        return await compare(request)

    canary._compare = slow
    await hand_over(pair, watched, prompt_of(40))
    await asyncio.wait_for(began.wait(), 10)
    canary.give_way()
    stream = await whole(watched.decode(prompt_request(prompt_of(30))))
    assert len(stream.ids) == 10
    assert (await ended(watched)).canaries == 0


async def test_a_prompt_ends_one_under_way(pair, watched, prompt_of):
    canary = watched.host.canary

    async def forever(_request):
        await asyncio.Event().wait()

    canary._compare = forever
    await hand_over(pair, watched, prompt_of(40))
    assert canary.running
    await hand_over(pair, watched, prompt_of(40, 1))
    assert canary.running, "a handoff in a quiet batch is in nobody's way"
    await whole(watched.decode(prompt_request(prompt_of(30))))
    assert not canary.running


@pytest.mark.parametrize("busy", ["sequences", "stopped"])
async def test_none_on_a_busy_or_draining_worker(pair, watched, prompt_of, busy):
    if busy == "stopped":
        watched.host.canary.stop()
        await hand_over(pair, watched, prompt_of(30))
    else:
        long = watched.decode(prompt_request(prompt_of(8), max_tokens=150))
        other = watched.decode(prompt_request(prompt_of(9), max_tokens=150))
        await watched.runs(2)
        await hand_over(pair, watched, prompt_of(30), max_tokens=2)
        assert not watched.host.canary.running
        long.cancel()
        other.cancel()
    assert (await ended(watched)).canaries == 0


async def test_a_drain_ends_it(pair, watched, prompt_of):
    async def forever(_request):
        await asyncio.Event().wait()

    watched.host.canary._compare = forever
    await hand_over(pair, watched, prompt_of(30))
    assert watched.host.canary.running
    watched.host.refuse_new()
    await watched.host.background.settled(2.0)
    assert not watched.host.canary.running


async def test_an_engine_that_fails_is_no_drift(pair, watched, prompt_of):
    canary = watched.host.canary

    async def fails(_request):
        raise LoopStopped("the engine failed")

    canary._compare = fails
    await hand_over(pair, watched, prompt_of(30))
    assert (await ended(watched)).canaries == 0


def token(**top):
    ranked = sorted(((ord(name), value) for name, value in top.items()), key=lambda one: -one[1])
    return SampledToken(ranked[0][0], ranked[0][1], tuple(ranked))


@pytest.mark.parametrize(
    ("one", "other", "drift"),
    [
        (token(a=-1.0, b=-2.0), token(a=-1.0, b=-2.0), 0.0),
        (token(a=-1.0, b=-2.0), token(a=-1.5, b=-2.1), 0.5),
        # A token at the end that the other does not list is at most as probable as its last.
        (token(a=-1.0, b=-2.0), token(a=-1.0, c=-2.01), 0.01),
        (token(a=-1.0, b=-2.0), token(c=-4.0, d=-5.0), 4.0),
    ],
)
def test_drift(one, other, drift):
    assert math.isclose(drift_between(one, other), drift, abs_tol=1e-9)
    assert math.isclose(drift_between(other, one), drift, abs_tol=1e-9)
