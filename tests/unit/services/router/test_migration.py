"""Sequences that decode workers let go with their KV: nothing is lost, and no retry is spent."""

import asyncio
import itertools
import random

import pytest

from baton import errors
from services.router.retry import RetryLimits
from tests.support.router_parts import RouterParts, request

OUTPUT = "hello\0"
IDS = [ord(character) for character in OUTPUT]
GONE = errors.Unavailable("gone")
WHY = ["draining", "preempted"]


@pytest.mark.parametrize("prefill", [0, 2])
@pytest.mark.parametrize("why", WHY)
@pytest.mark.parametrize("sent", range(-1, 5))
async def test_a_sequence_moves_at_every_step(sent, why, prefill):
    parts = RouterParts(prefill=prefill)
    parts.dispatcher.budget = 0
    parts.legs.decode_faults = [(sent, why)]
    text, ids, completed = await parts.run()
    assert (text, ids) == ("hello", IDS)
    assert completed.usage.completion_tokens == len(IDS)
    assert (completed.timings.migrations, completed.timings.decode_attempts) == (1, 2)
    counters = parts.register.counters
    assert (counters.migrated, counters.retried_legs) == (1, 0)
    assert (counters.resumed, counters.recomputed) == (0, 0)
    assert (parts.pauses, parts.fleet.failures) == ([], [])
    before, after = parts.legs.calls
    assert after.handoff is parts.legs.moved[0]
    assert (before.attempt, after.attempt) == (0, 1)
    assert [token.token_id for token in after.emitted] == IDS[: len(after.emitted)]
    assert len(after.emitted) == max(0, sent) + (prefill > 0)
    await parts.check_all_given_back()


@pytest.mark.parametrize(("why", "elsewhere"), [("draining", True), ("preempted", False)])
async def test_only_a_worker_that_drains_is_left_out(why, elsewhere):
    parts = RouterParts()
    parts.legs.decode_faults = [(1, why)]
    await parts.run()
    assert parts.dispatcher.excluded == [{("decode-0", "1")} if elsewhere else set()]
    assert parts.dispatcher.near == [None]
    assert parts.legs.decode_calls[1][0] == ("decode-1" if elsewhere else "decode-0")


async def test_the_lease_is_held_until_another_worker_has_started():
    parts = RouterParts()
    parts.legs.decode_faults = [(2, "preempted")]
    parts.dispatcher.full = True
    task = asyncio.create_task(parts.run())
    async with asyncio.timeout(2):
        while not parts.dispatcher.near:
            await asyncio.sleep(0.002)
    await parts.leases.renew_all()
    assert parts.transfer.renewed == [parts.legs.moved[0].lease]
    assert parts.dispatcher.held == {}, "its old room was given back"
    task.cancel()
    await asyncio.wait({task})
    await parts.check_all_given_back()


async def test_the_lease_ends_as_soon_as_another_worker_has_started():
    parts = RouterParts()
    parts.legs.decode_faults = [(2, "preempted")]
    events = parts.events()
    async for _ in events:
        if len(parts.legs.calls) == 2:
            break
    assert len(parts.leases) == 0
    await events.aclose()
    await parts.check_all_given_back()


async def test_moves_do_not_count_as_failures():
    parts = RouterParts("endless words", limits=RetryLimits(decode_attempts=2))
    parts.legs.decode_faults = [(1, "preempted")] * 5 + [(1, GONE)]
    text, _, completed = await parts.run(request(max_tokens=10))
    assert text == "endless words"[:10]
    assert completed.timings.migrations == 5
    assert len(parts.pauses) == 1
    parts.legs.decode_faults = [(1, GONE), (1, "preempted"), (0, GONE)]
    with pytest.raises(errors.Unavailable):
        await parts.run(request(max_tokens=10))
    await parts.check_all_given_back()


async def test_after_a_failure_it_goes_on_from_the_last_handoff():
    parts = RouterParts()
    parts.legs.decode_faults = [(1, "draining"), (1, GONE)]
    assert (await parts.run())[1] == IDS
    assert [call.handoff for call in parts.legs.calls[1:]] == [parts.legs.moved[0]] * 2
    assert parts.register.counters.resumed == 1
    await parts.check_all_given_back()


async def test_a_worker_of_another_layout_gets_token_ids():
    parts = RouterParts(decode=1)
    parts.legs.decode_faults = [(1, "preempted")]
    events = parts.events()
    await anext(events)
    other = parts.dispatcher.decode[0]
    object.__setattr__(other, "layout_fingerprint", "layout-b")
    ids = [token.token_id async for event in events if hasattr(event, "tokens")
           for token in event.tokens]  # fmt: skip
    assert ids == IDS[1:]
    await parts.check_all_given_back()


async def test_other_tokens_than_were_streamed_are_a_bug():
    parts = RouterParts()
    parts.legs.decode_faults = [(1, "draining")]
    original = parts.legs._handed_off
    parts.legs._handed_off = lambda worker, asked, emitted, why: original(
        worker, asked, [*emitted, 7], why
    )
    with pytest.raises(errors.InternalError, match="other tokens"):
        await parts.run()
    parts.legs.moved.clear()  # its lease is the worker's: the router never took it
    await parts.check_all_given_back()


async def test_prompt_log_probabilities_that_are_not_told_yet_are_computed_again():
    parts = RouterParts(prefill=0)
    parts.legs.decode_faults = [(-1, "preempted")]
    text, _, _ = await parts.run(request("ab", prompt_logprobs=0))
    assert text == "hello"
    assert [call.handoff for call in parts.legs.calls] == [None, None]
    await parts.check_all_given_back()


def scenario(stop_at, prefill):
    """A failure and moves, so that every await that there is comes up."""
    parts = RouterParts("hello\0", "goodbye\0", stop_at=stop_at, prefill=prefill)
    parts.legs.choice_faults = {0: [(1, "draining"), (1, GONE)], 1: [(2, "preempted")]}
    return parts


@pytest.mark.parametrize("prefill", [0, 2])
async def test_cancel_in_every_window(prefill):
    parts = scenario(None, prefill)
    await parts.run_choices(request(n=2))
    await parts.check_all_given_back()
    for stop_at, name in enumerate(parts.windows.names):
        if name == "background release":
            continue
        parts = scenario(stop_at, prefill)
        task = asyncio.create_task(parts.run_choices(request(n=2)))
        async with asyncio.timeout(5):
            await parts.windows.reached.wait()
        await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await parts.check_all_given_back()


async def test_any_mix_of_moves_and_failures_gives_every_token_once():
    outputs = ("hello\0", "goodbye\0", "hey\0")
    expected = [(text[:-1], [ord(character) for character in text]) for text in outputs]
    for seed in range(200):
        rng = random.Random(seed)
        parts = RouterParts(*outputs, step=rng.randint(1, 3), prefill=rng.choice((0, 2)))
        ways = itertools.cycle([*WHY, GONE, *WHY])
        parts.legs.choice_faults = {
            index: [(rng.randint(-1, 4), next(ways)) for _ in range(rng.randint(0, 5))]
            for index in range(3)
        }
        choices, _ = await parts.run_choices(request(n=3))
        assert choices == expected, seed
        await parts.check_all_given_back()
