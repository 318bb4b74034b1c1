"""Several routers share one Redis: fair order, and one that dies takes nobody with it."""

import asyncio
import itertools
import signal

from baton.client import AsyncClient, ResumeFrom
from baton.events import Completed, Delta
from tests.faults.load import Work, ended, fresh, played, ready, until_decoding, until_idle_at
from tests.faults.schedules import DECODE, ROUTERS

LEASE_SECONDS = 2.0
"""As the clusters are started with."""
ROUTER_LIFE_SECONDS = 3.0


async def test_clients_of_a_killed_router_go_on_at_the_other(pairs, oracle):
    """Texts are whole, and what the dead router held is free within a lease, without it."""
    plans = [
        fresh(f"router {i}", 60, 400, router=0, temperature=0.9 * (i % 2), n=1 + i % 3 // 2)
        for i in range(4)
    ]
    running = asyncio.create_task(played(pairs, Work.of(plans, oracle)))
    await until_decoding(pairs, DECODE, any_of_them=True)
    await ended(pairs, ROUTERS[0], signal.SIGKILL)
    outcomes = await running
    assert [outcome.moves for outcome in outcomes] == [1, 1, 1, 1]
    assert any(outcome.resumes for outcome in outcomes), "none had a token already"
    await until_idle_at(pairs.clients[ROUTERS[1]], LEASE_SECONDS + ROUTER_LIFE_SECONDS + 1.0)
    pairs.start(ROUTERS[0])
    await ready(pairs)


async def test_killed_while_its_requests_wait_in_the_queue(pairs, oracle):
    """With the prefill workers still, a queue forms; the dead router's part of it goes."""
    plans = [fresh(f"queued {i}", 30, 4, router=0) for i in range(80)]
    with pairs.stopped("prefill"):
        running = asyncio.create_task(played(pairs, Work.of(plans, oracle)))
        await asyncio.sleep(0.5)
        await ended(pairs, ROUTERS[0], signal.SIGKILL)
        await asyncio.sleep(0.2)
    await running
    pairs.start(ROUTERS[0])
    await ready(pairs)


def test_a_stream_that_was_cut_off_needs_only_what_it_was_told(pairs):
    """The seed that the router drew, and the tokens: the other router goes on from there."""
    first, second = (pairs.clients[name] for name in ROUTERS)
    prompt = [9 + i % 90 for i in range(50)]
    options = {"temperature": 0.9, "max_tokens": 60, "ignore_eos": True, "n": 2}
    tokens, texts = [[], []], ["", ""]
    with first.generate(prompt, **options) as stream:
        for delta in itertools.islice(stream, 40):
            tokens[delta.choice] += [token.id for token in delta.tokens]
            texts[delta.choice] += delta.text
        seed = stream.accepted.seed
    resume = ResumeFrom(seed, tuple(map(tuple, tokens)))
    with second.generate(prompt, resume_from=resume, **options) as stream:
        for event in stream:
            if isinstance(event, Delta):
                tokens[event.choice] += [token.id for token in event.tokens]
                texts[event.choice] += event.text
            elif isinstance(event, Completed):
                completed = event
    whole = second.complete(prompt, seed=seed, **options)
    assert [tuple(one) for one in tokens] == [choice.token_ids for choice in whole.choices]
    assert texts == [choice.text for choice in whole.choices]
    assert completed.usage.completion_tokens == 120


def test_resuming_a_stream_that_had_everything_ends_at_once(pairs):
    prompt, options = [7, 8, 9], {"seed": 5, "max_tokens": 6, "ignore_eos": True}
    whole = pairs.client.complete(prompt, **options)
    again = pairs.client.complete(prompt, resume_from=ResumeFrom(5, (whole.token_ids,)), **options)
    assert again.token_ids == ()
    assert again.finish_reason == whole.finish_reason


async def test_the_order_is_fair_over_both(pairs):
    """A queue over both routers: neither router's requests come before the other's."""
    order = []

    async def one(client, router, number):
        prompt = [3 + (i * 7 + number * 31 + router * 17) % 240 for i in range(120)]
        async with client.generate(prompt, max_tokens=1, ignore_eos=True) as stream:
            async for event in stream:
                if isinstance(event, Completed):
                    order.append(router)

    async with AsyncClient(pairs.addresses[0]) as a, AsyncClient(pairs.addresses[1]) as b:
        clients = (a, b)
        await asyncio.gather(one(a, 0, 1000), one(b, 1, 1000))
        order.clear()
        running = []
        with pairs.stopped("prefill"):
            for number in range(60):  # at both in turn: on a busy machine one might sleep else
                running += [
                    asyncio.create_task(one(clients[router], router, number)) for router in (0, 1)
                ]
                await asyncio.sleep(0.015)
        await asyncio.gather(*running)
    ranks = [sum(i for i, router in enumerate(order) if router == which) / 60 for which in (0, 1)]
    assert len(order) == 120
    assert abs(ranks[0] - ranks[1]) < 30, "one router's requests wait for the other's"
