"""A decode worker dies in mid-stream: one stream, no token twice, none missing.

Resumed from the blobs where those survive, computed again where they do not; both are counted.
"""

import asyncio
import signal

from tests.faults.clients import play
from tests.faults.load import Work, counted, ended, fresh, ready, until_decoding
from tests.faults.schedules import DECODE

PROMPT_TOKENS = 160
SEEN = 30


async def interrupted(cluster, plan, victims):
    """Plays a request; once it has some tokens, its decode worker and `victims` are killed.

    Returns the outcome, and the decode worker that was killed.
    """
    seen = asyncio.Event()

    def watch(tokens):
        if tokens >= SEEN:
            seen.set()

    running = asyncio.create_task(play(plan, cluster.addresses, None, watch))
    await seen.wait()
    (busy,) = await until_decoding(cluster, DECODE, any_of_them=True)
    await asyncio.gather(*(ended(cluster, name, signal.SIGKILL) for name in (*victims, busy)))
    for name in victims:
        cluster.start(name)
    outcome = await running
    cluster.start(busy)
    return outcome, busy


def computed(cluster, name):
    return cluster.worker_status(name).prefilled_tokens


async def test_resumed_from_the_blobs_that_survive(pairs, oracle):
    plan = fresh("resumed", PROMPT_TOKENS, 300, temperature=0.9)
    work = Work.of([plan], oracle)
    before = [counted(pairs, f"{way}_sequences") for way in ("resumed", "recomputed")]
    prompts = {name: computed(pairs, name) for name in DECODE}
    outcome, busy = await interrupted(pairs, plan, ())
    assert oracle.problems(outcome, work.expected[0], strict=True) == []
    after = [counted(pairs, f"{way}_sequences") for way in ("resumed", "recomputed")]
    assert after == [before[0] + 1, before[1]]
    (other,) = set(DECODE) - {busy}
    assert computed(pairs, other) - prompts[other] < PROMPT_TOKENS, "the prompt was recomputed"
    assert outcome.completed.timings.decode_attempts == 2
    await ready(pairs)


async def test_computed_again_when_the_blobs_are_gone_too(pairs, oracle):
    plan = fresh("recomputed", PROMPT_TOKENS, 300, temperature=0.0)
    work = Work.of([plan], oracle)
    before = [counted(pairs, f"{way}_sequences") for way in ("resumed", "recomputed")]
    outcome, _ = await interrupted(pairs, plan, ("transfer",))
    assert oracle.problems(outcome, work.expected[0], strict=True) == []
    after = [counted(pairs, f"{way}_sequences") for way in ("resumed", "recomputed")]
    assert after == [before[0], before[1] + 1]
    await ready(pairs)


async def test_every_choice_of_a_request_goes_on(pairs, oracle):
    plan = fresh("choices", 60, 250, temperature=0.9, n=3)
    expected = oracle.expected(plan)
    outcome, _ = await interrupted_choices(pairs, plan)
    assert oracle.problems(outcome, expected, strict=True) == []
    await ready(pairs)


async def interrupted_choices(cluster, plan):
    """As `interrupted`, where choices may run on both workers: one of them is killed."""
    running = asyncio.create_task(play(plan, cluster.addresses, None, lambda tokens: None))
    victim = (await until_decoding(cluster, DECODE, any_of_them=True))[0]
    await ended(cluster, victim, signal.SIGKILL)
    outcome = await running
    cluster.start(victim)
    return outcome, victim


async def test_two_deaths_of_one_stream(pairs, oracle):
    """The second worker dies as well, while the first one is back already."""
    plan = fresh("twice", 40, 400)
    expected = oracle.expected(plan)
    counts = asyncio.Queue()
    running = asyncio.create_task(play(plan, pairs.addresses, None, counts.put_nowait))
    for goal in (20, 120):
        while await counts.get() < goal:
            pass
        (busy,) = await until_decoding(pairs, DECODE, any_of_them=True)
        await ended(pairs, busy, signal.SIGKILL)
        pairs.start(busy)
    outcome = await running
    assert oracle.problems(outcome, expected, strict=True) == []
    await ready(pairs)
