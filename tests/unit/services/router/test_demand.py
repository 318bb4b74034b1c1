"""What a router's clients asked, counted and told."""

import asyncio
from contextlib import aclosing

import pytest

from baton import errors
from baton.policy.cost import pairs
from services.common.fleet.demand import DemandTotals
from services.router.demand import DemandCounter
from tests.support.router_parts import RouterParts, request


class Shared:
    """Redis' sums. `faults` come one a call; one may come after the batch was added."""

    def __init__(self):
        self.totals = DemandTotals()
        self.seen = set()
        self.faults = []

    async def add_demand(self, totals, batch):
        fault = self.faults.pop(0) if self.faults else None
        if fault == "before":
            raise errors.Unavailable("away", reason="REDIS_AWAY")
        if batch not in self.seen:
            self.seen.add(batch)
            self.totals += totals
        if fault == "after":
            raise errors.Unavailable("away", reason="REDIS_AWAY")


@pytest.fixture
def shared():
    return Shared()


@pytest.fixture
def counter(shared):
    return DemandCounter(shared, period_s=0.01)


def parts_of(counter, *outputs):
    return RouterParts(*outputs, sinks=[counter.ended], on_arrival=counter.arrived)


async def test_a_request_counts_when_it_comes_and_its_tokens_when_it_ends(shared, counter):
    parts = parts_of(counter)
    async with aclosing(parts.events(request("abcdef"))) as events:
        await anext(events)
        await counter.add()
        assert shared.totals == DemandTotals(requests=1, prompt_tokens=6)
        async for _ in events:
            pass
    await counter.add()
    told = shared.totals
    tokens = int(told.output_tokens)
    assert (told.requests, told.computed_requests, told.sequences) == (1, 1, 1)
    assert (told.new_tokens, told.new_pairs) == (3, pairs(3, 3))
    assert tokens > 1
    assert told.output_context == sum(6 + number for number in range(1, tokens + 1))
    assert (told.ttft_judged, told.ttft_held, told.refused) == (1, 1, 0)


async def test_one_that_is_refused_counts_with_its_prompt(shared, counter):
    parts = parts_of(counter)
    parts.dispatcher.refusal = errors.Exhausted("too late", reason="TARGET_MISSED")
    with pytest.raises(errors.Exhausted):
        await parts.run(request("abc"))
    await counter.add()
    assert shared.totals == DemandTotals(requests=1, prompt_tokens=3, refused=1)


async def test_one_that_is_not_valid_does_not_count(shared, counter):
    with pytest.raises(errors.InvalidRequest):
        await parts_of(counter).run(request(max_tokens=-1))
    await counter.add()
    assert shared.totals == DemandTotals()


async def test_choices_share_the_prompt_and_are_sequences_of_their_own(shared, counter):
    outputs = ["hello\0"] * 3
    await parts_of(counter, *outputs).run_choices(request("abcdef", n=3))
    await counter.add()
    told = shared.totals
    assert (told.requests, told.computed_requests, told.new_tokens) == (1, 1, 3)
    assert told.sequences == 3


async def test_a_stream_that_is_resumed_asks_for_the_rest_alone(shared, counter):
    await parts_of(counter).run(request("abc", resume=(7, ["he"]), max_tokens=5))
    await counter.add()
    told = shared.totals
    assert (told.sequences, told.output_tokens) == (1, 3)
    assert told.output_context == (3 + 3) + (3 + 4) + (3 + 5)


async def test_nothing_is_lost_or_counted_twice_while_redis_is_away(shared, counter):
    parts = parts_of(counter)
    shared.faults = ["after", "before", "after"]
    for _ in range(3):
        parts.dispatcher.refusal = errors.Exhausted("too late", reason="TARGET_MISSED")
        with pytest.raises(errors.Exhausted):
            await parts.run(request("a"))
        with pytest.raises(errors.Unavailable):
            await counter.add()
    await counter.add()
    assert shared.totals == DemandTotals(requests=3, prompt_tokens=3, refused=3)


async def test_it_tells_in_the_background_and_at_its_end(shared, counter, caplog):
    parts = parts_of(counter)
    shared.faults = ["before", "after"]
    counter.start()
    await parts.run()
    async with asyncio.timeout(10):
        while not shared.totals.sequences:
            await asyncio.sleep(0.005)
    assert caplog.text.count("demand is not told") == 1
    await parts.run()
    await counter.close()
    assert (shared.totals.requests, shared.totals.sequences) == (2, 2)


async def test_its_end_does_not_fail_where_redis_is_away(shared, counter):
    await parts_of(counter).run()
    shared.faults = ["before"]
    counter.start()
    await counter.close()
    assert shared.totals == DemandTotals()
