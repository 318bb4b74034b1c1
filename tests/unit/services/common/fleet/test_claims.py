"""Claims: compare-and-set on a worker's room."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.naming import RequestId, new_id
from baton.policy.fleet import NOTHING, Claim, Role, Usage
from baton.policy.placement import Choice
from services.common.fleet.store import FleetStore, RouterId, Ticket, TicketId
from tests.support.fleet import worker

PERIOD_S = 5.0
LEASE_S = 10.0
COST = Usage(1, 10)


def plan(*workers, cost=COST):
    """One choice for each role among the workers."""
    roles = dict.fromkeys(each.role for each in workers)
    return tuple(
        Choice(role, cost, tuple(each for each in workers if each.role is role)) for role in roles
    )


def claim(name="r", attempt=0):
    return Claim(RequestId(name), attempt)


async def pending(store, name="w"):
    snapshot = await store.snapshot()
    return next(each.pending for each in snapshot.workers if each.worker_id == name)


async def test_a_claim_takes_room_and_release_gives_it_back(store):
    one = worker()
    await store.heartbeat(one, PERIOD_S)
    assert await store.claim(claim(), [plan(one)], LEASE_S) == (one,)
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
    assert await store.claim(claim(), [plan(second)], LEASE_S) == (second,)
    assert await store.claim(claim(), [plan(first, second)], LEASE_S) == (second,)
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
    assert await store.claim(claim("big"), [plan(one, cost=Usage(1, 6))], LEASE_S) is None
    assert await store.claim(claim("a"), [plan(one, cost=Usage(1, 1))], LEASE_S) == (one,)
    assert await store.claim(claim("b"), [plan(one, cost=Usage(1, 1))], LEASE_S) is None


async def test_the_first_plan_and_worker_with_room_is_taken(store):
    full, free, other = (
        worker("full", capacity=Usage(1, 1000), running=Usage(1, 5)),
        worker("free"),
        worker("other"),
    )
    for each in (full, free, other):
        await store.heartbeat(each, PERIOD_S)
    assert await store.claim(claim("a"), [plan(full, free, other)], LEASE_S) == (free,)
    assert await store.claim(claim("b"), [plan(full), plan(other)], LEASE_S) == (other,)


async def test_all_choices_of_a_plan_or_none(store):
    prefill = worker("p", Role.PREFILL)
    full = worker("full", capacity=Usage(1, 1000), running=Usage(1, 5))
    await store.heartbeat(prefill, PERIOD_S)
    await store.heartbeat(full, PERIOD_S)
    assert await store.claim(claim(), [plan(prefill, full)], LEASE_S) is None
    assert await pending(store, "p") == NOTHING
    decode = worker("d")
    await store.heartbeat(decode, PERIOD_S)
    picked = await store.claim(claim(), [plan(prefill, full, decode)], LEASE_S)
    assert picked == (prefill, decode)
    assert await pending(store, "p") == await pending(store, "d") == Usage(1, 10)


async def test_another_incarnation_cannot_be_claimed(store):
    await store.heartbeat(worker(incarnation="old"), PERIOD_S)
    await store.claim(claim("before"), [plan(worker(incarnation="old"))], LEASE_S)
    await store.heartbeat(worker(incarnation="new"), PERIOD_S)
    assert await pending(store) == NOTHING
    assert await store.claim(claim(), [plan(worker(incarnation="old"))], LEASE_S) is None
    new = worker(incarnation="new")
    assert await store.claim(claim("before"), [plan(new)], LEASE_S) == (new,)
    assert await pending(store) == Usage(1, 10)


async def test_a_draining_worker_cannot_be_claimed(store):
    await store.heartbeat(worker(draining=True), PERIOD_S)
    assert await store.claim(claim(), [plan(worker())], LEASE_S) is None


async def test_an_unknown_worker_cannot_be_claimed(store):
    assert await store.claim(claim(), [plan(worker())], LEASE_S) is None


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
    await store.claim(claim("lost"), [plan(worker())], 0.3)
    await store.claim(claim("kept"), [plan(worker())], 0.3)
    async with asyncio.timeout(30):
        while await pending(store) != Usage(1, 10):
            assert (await store.snapshot()).claims == 2
            await store.renew([("w", claim("kept"))], 0.3)
            await store.heartbeat(worker(), 0.5)
            await asyncio.sleep(0.05)
    assert await store.claim(claim("kept"), [plan(worker())], 0.3) is not None
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


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("beat"),
            st.sampled_from(["p", "d", "e"]),
            st.sampled_from(["one", "two"]),
            st.integers(0, 3),
            st.sets(st.integers(0, 3)),
            st.booleans(),
        ),
        st.tuples(st.just("claim"), st.integers(0, 3), st.integers(1, 60), st.booleans()),
        st.tuples(st.just("release"), st.sampled_from(["p", "d", "e"]), st.integers(0, 3)),
        st.tuples(st.just("enqueue"), st.integers(0, 3), st.integers(-1, 60), st.floats(-1, 1)),
        st.tuples(st.just("leave"), st.integers(0, 3)),
        st.tuples(st.just("gone"), st.sampled_from(["p", "d", "e"])),
    ),
    max_size=25,
)


def described(name, incarnation="one", running=0, taken=(), draining=False):
    role = Role.PREFILL if name == "p" else Role.DECODE
    return worker(
        name,
        role,
        incarnation=incarnation,
        capacity=Usage(3, 100),
        running=Usage(running, 10 * running),
        taken=frozenset(claim(str(number)) for number in taken),
        draining=draining,
    )


async def perform(store, operation):
    match operation:
        case ("beat", name, incarnation, running, taken, draining):
            await store.heartbeat(described(name, incarnation, running, taken, draining), PERIOD_S)
        case ("claim", number, tokens, at_turn):
            possible = plan(described("p"), described("d"), described("e"), cost=Usage(1, tokens))
            ticket = TicketId(str(number)) if at_turn else None
            await store.claim(claim(str(number)), [possible], LEASE_S, ticket)
        case ("release", name, number):
            await store.release([(name, claim(str(number)))])
        case ("enqueue", number, tokens, score):
            needed = None if tokens < 0 else tokens
            ticket = Ticket(TicketId(str(number)), RouterId("router"), score, needed, tokens)
            await store.enqueue(ticket)
        case ("leave", number):
            await store.leave([TicketId(str(number))])
        case ("gone", name):
            await store.deregister(name, "one")


async def told(store):
    """What the fleet says, apart from the time."""
    snapshot = await store.snapshot()
    workers = {each.worker_id: each for each in snapshot.workers}
    return workers, snapshot.waiting, snapshot.turns, snapshot.claims


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations)
def test_every_script_may_run_twice_and_the_sums_stay_right(redis_server, performed):
    async def scenario():
        store = FleetStore(redis_server.url, new_id("fleet"))
        for operation in performed:
            before = await told(store)
            await perform(store, operation)
            after = await told(store)
            await perform(store, operation)
            assert await told(store) == after
            await store.check_integrity()
            if operation[0] == "claim":
                workers, _, _, _ = after
                for name, each in workers.items():
                    assert each.pending == before[0][name].pending or NOTHING.fits_in(each.free)
        await store.close()

    asyncio.run(scenario())
