"""Claims: compare-and-set on a worker's room."""

import asyncio

from baton.policy.fleet import NOTHING, Load, Role, Usage
from services.common.fleet.store import Need, Place, TicketId
from tests.support.fleet import worker
from tests.support.fleet_store import candidate, claim, plan, ticket

PERIOD_S = 5.0
LEASE_S = 10.0


async def claimed(store, *args, **kwargs):
    """The workers that a claim got, or None."""
    picked = await store.claim(*args, **kwargs)
    return None if picked is None else tuple(one.worker for one in picked)


async def pending(store, name="w"):
    snapshot = await store.snapshot()
    return next(each.pending for each in snapshot.workers if each.worker_id == name)


async def test_a_claim_takes_room_and_release_gives_it_back(store):
    one = worker()
    await store.heartbeat(one, PERIOD_S)
    assert await claimed(store, claim(), [plan(one)], LEASE_S) == (one,)
    assert await pending(store) == Usage(1, 10)
    assert (await store.snapshot()).claims == 1
    await store.release([("w", claim())])
    await store.release([("w", claim())])
    assert await pending(store) == NOTHING
    assert (await store.snapshot()).claims == 0


async def test_the_same_claim_twice_counts_once_and_stays_where_it_is(store):
    first, second = worker("a"), worker("b")
    await store.heartbeat(first, PERIOD_S)
    await store.heartbeat(second, PERIOD_S)
    assert await claimed(store, claim(), [plan(second)], LEASE_S) == (second,)
    assert await claimed(store, claim(), [plan(first, second)], LEASE_S) == (second,)
    assert await pending(store, "a") == NOTHING
    assert await pending(store, "b") == Usage(1, 10)


async def test_another_attempt_is_another_claim(store):
    await store.heartbeat(worker(), PERIOD_S)
    await store.claim(claim(attempt=0), [plan(worker())], LEASE_S)
    await store.claim(claim(attempt=1), [plan(worker())], LEASE_S)
    assert await pending(store) == Usage(2, 20)


async def test_neither_sequences_nor_tokens_are_over_committed(store):
    one = worker(capacity=Usage(2, 100), running=Usage(1, 95))
    await store.heartbeat(one, PERIOD_S)
    assert await claimed(store, claim("big"), [plan(one, cost=Usage(1, 6))], LEASE_S) is None
    assert await claimed(store, claim("a"), [plan(one, cost=Usage(1, 1))], LEASE_S) == (one,)
    assert await claimed(store, claim("b"), [plan(one, cost=Usage(1, 1))], LEASE_S) is None


async def test_the_first_plan_and_worker_with_room_is_taken(store):
    full, free, other = (
        worker("full", capacity=Usage(1, 1000), running=Usage(1, 5)),
        worker("free"),
        worker("other"),
    )
    for each in (full, free, other):
        await store.heartbeat(each, PERIOD_S)
    assert await claimed(store, claim("a"), [plan(full, free, other)], LEASE_S) == (free,)
    assert await claimed(store, claim("b"), [plan(full), plan(other)], LEASE_S) == (other,)


async def test_all_choices_of_a_plan_or_none(store):
    prefill = worker("p", Role.PREFILL)
    full = worker("full", capacity=Usage(1, 1000), running=Usage(1, 5))
    await store.heartbeat(prefill, PERIOD_S)
    await store.heartbeat(full, PERIOD_S)
    assert await claimed(store, claim(), [plan(prefill, full)], LEASE_S) is None
    assert await pending(store, "p") == NOTHING
    decode = worker("d")
    await store.heartbeat(decode, PERIOD_S)
    picked = await claimed(store, claim(), [plan(prefill, full, decode)], LEASE_S)
    assert picked == (prefill, decode)
    assert await pending(store, "p") == await pending(store, "d") == Usage(1, 10)


async def test_another_incarnation_cannot_be_claimed(store):
    await store.heartbeat(worker(incarnation="old"), PERIOD_S)
    await store.claim(claim("before"), [plan(worker(incarnation="old"))], LEASE_S)
    await store.heartbeat(worker(incarnation="new"), PERIOD_S)
    assert await pending(store) == NOTHING
    assert await claimed(store, claim(), [plan(worker(incarnation="old"))], LEASE_S) is None
    new = worker(incarnation="new")
    assert await claimed(store, claim("before"), [plan(new)], LEASE_S) == (new,)
    assert await pending(store) == Usage(1, 10)


async def test_a_draining_worker_cannot_be_claimed(store):
    await store.heartbeat(worker(draining=True), PERIOD_S)
    assert await claimed(store, claim(), [plan(worker())], LEASE_S) is None


async def test_an_unknown_worker_cannot_be_claimed(store):
    assert await claimed(store, claim(), [plan(worker())], LEASE_S) is None


async def test_a_heartbeat_takes_over_the_claims_that_it_reports(store):
    await store.heartbeat(worker(), PERIOD_S)
    await store.claim(claim("taken"), [plan(worker())], LEASE_S)
    await store.claim(claim("coming"), [plan(worker())], LEASE_S)
    busy = worker(running=Usage(1, 10), taken=frozenset({claim("taken"), claim("unknown")}))
    for _ in range(2):
        await store.heartbeat(busy, PERIOD_S)
        (known,) = (await store.snapshot()).workers
        assert known.free == Usage(2, 980)
        assert known.pending == Usage(1, 10)
    await store.release([("w", claim("taken"))])
    assert await pending(store) == Usage(1, 10)


async def test_renewing_does_not_bring_back_a_claim(store):
    await store.heartbeat(worker(), PERIOD_S)
    await store.renew([("w", claim())], LEASE_S)
    assert (await store.snapshot()).claims == 0


async def test_an_expired_claim_vanishes_and_a_renewed_one_stays(store):
    await store.heartbeat(worker(), 0.5)
    await store.claim(claim("lost"), [plan(candidate(worker(), 0.5))], 1.0)
    await store.claim(claim("kept"), [plan(worker())], 1.0)
    assert (await store.snapshot()).claims == 2
    async with asyncio.timeout(30):
        while await pending(store) != Usage(1, 10):
            await store.renew([("w", claim("kept"))], LEASE_S)
            await store.heartbeat(worker(), 0.5)
            await asyncio.sleep(0.05)
    assert (await store.snapshot()).workers[0].pending_prompt_s == 0
    assert await claimed(store, claim("kept"), [plan(worker())], 0.3) is not None
    assert (await store.snapshot()).claims == 1


async def test_many_claimers_at_once_never_over_commit(redis_server, store):
    workers = [worker(f"w{number}", capacity=Usage(3, 100)) for number in range(3)]
    for each in workers:
        await store.heartbeat(each, PERIOD_S)
    answers = await asyncio.gather(
        *(
            store.claim(claim(f"r{number}"), [plan(*workers)], LEASE_S)
            for number in range(60)
            for _ in range(2)
        )
    )
    assert sum(answer is not None for answer in answers) == 2 * 9
    snapshot = await store.snapshot()
    assert [each.pending for each in snapshot.workers] == [Usage(3, 30)] * 3


async def test_a_worker_is_not_taken_beyond_the_limit_of_the_candidate(store):
    one = worker(capacity=Usage(8, 1000), running=Usage(1, 10))
    await store.heartbeat(one, PERIOD_S)
    limited = plan(candidate(one, limit=3))
    assert await claimed(store, claim("a"), [limited], LEASE_S) == (one,)
    assert await claimed(store, claim("b"), [limited], LEASE_S) == (one,)
    assert await claimed(store, claim("c"), [limited], LEASE_S) is None
    assert await claimed(store, claim("b"), [limited], LEASE_S) == (one,), "held already"
    assert await claimed(store, claim("c"), [plan(candidate(one, limit=4))], LEASE_S) == (one,)


async def test_a_worker_takes_no_more_sequences_than_it_says_hold_its_target(store):
    one = worker(capacity=Usage(8, 1000), load=Load(sequence_limit=1))
    await store.heartbeat(one, PERIOD_S)
    assert await claimed(store, claim("a"), [plan(one)], LEASE_S) == (one,)
    assert await claimed(store, claim("b"), [plan(one)], LEASE_S) is None
    await store.heartbeat(worker(capacity=Usage(8, 1000)), PERIOD_S)
    assert await claimed(store, claim("b"), [plan(one)], LEASE_S) == (one,)


async def test_prompts_go_to_workers_that_want_them(store):
    busy = worker("busy", load=Load(prompt_backlog_s=1.0))
    keen = worker("keen", load=Load(prompt_backlog_s=0.9))
    for each in (busy, keen):
        await store.heartbeat(each, PERIOD_S)
    prompts = plan(candidate(busy, 5.0), candidate(keen, 5.0))
    assert await claimed(store, claim("a"), [prompts], LEASE_S) == (keen,)
    assert await claimed(store, claim("b"), [prompts], LEASE_S) is None
    assert await claimed(store, claim("b"), [plan(busy)], LEASE_S) == (busy,), "no prompt work"
    snapshot = {one.worker_id: one for one in (await store.snapshot()).workers}
    assert snapshot["keen"].pending_prompt_s == 5.0
    await store.release([("keen", claim("a"))])
    assert await claimed(store, claim("c"), [prompts], LEASE_S) == (keen,)


async def test_a_prompt_may_wait_where_it_is_cached_for_what_that_saves(store):
    busy = worker(load=Load(prompt_backlog_s=1.5))
    await store.heartbeat(busy, PERIOD_S)
    for saved_s, expected in ((0.4, None), (0.6, (busy,))):
        cached = plan(candidate(busy, 0.2, saved_s=saved_s))
        assert await claimed(store, claim(), [cached], LEASE_S) == expected


async def test_a_claim_tells_the_candidate_of_the_plan_that_fits(store):
    one, other = worker("one"), worker("other", capacity=Usage(1, 5))
    for each in (one, other):
        await store.heartbeat(each, PERIOD_S)
    plans = [plan(candidate(other, 0.1)), plan(candidate(other, 0.2), candidate(one, 0.3))]
    (picked,) = await store.claim(claim(), plans, LEASE_S)
    assert (picked.worker, picked.prompt_s) == (one, 0.3)


async def test_what_a_worker_tells_replaces_the_prompt_work_of_what_it_took(store):
    await store.heartbeat(worker(), PERIOD_S)
    for name in ("taken", "coming"):
        keen = plan(candidate(worker(), 0.5))
        assert await store.claim(claim(name), [keen], LEASE_S) is not None
    taken = worker(taken=frozenset({claim("taken")}), load=Load(prompt_backlog_s=0.25))
    for _ in range(2):
        await store.heartbeat(taken, PERIOD_S)
        (known,) = (await store.snapshot()).workers
        assert (known.load.prompt_backlog_s, known.pending_prompt_s) == (0.25, 0.5)


async def test_many_claims_of_prompts_at_once_keep_workers_just_busy(store):
    prefill = worker("p", Role.PREFILL, capacity=Usage(100, 10_000))
    await store.heartbeat(prefill, PERIOD_S)
    prompts = plan(candidate(prefill, 0.3))
    answers = await asyncio.gather(
        *(store.claim(claim(f"r{number}"), [prompts], LEASE_S) for number in range(30))
    )
    assert sum(answer is not None for answer in answers) == 4
    assert (await store.snapshot()).workers[0].pending_prompt_s == 4 * 0.3


async def test_a_turn_is_worth_a_claim_where_only_small_workers_want_prompts(store):
    """Room and the wish for prompts must be on one worker."""
    roomy = worker("roomy", Role.PREFILL, load=Load(prompt_backlog_s=9.0))
    small = worker("small", Role.PREFILL, capacity=Usage(4, 50))
    for each in (roomy, small, worker("d")):
        await store.heartbeat(each, PERIOD_S)
    large = await store.enqueue(ticket("large", prefill=Need(500, 0.5)))
    assert large.place is Place.WAITING
    await store.leave([TicketId("large")])
    fitting = await store.enqueue(ticket("fitting", prefill=Need(10, 0.5)))
    assert fitting.place is Place.TURN
    possible = plan(candidate(small, 0.5), worker("d"))
    assert await store.claim(claim(), [possible], LEASE_S, TicketId("fitting")) is not None
