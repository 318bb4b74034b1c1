"""Whatever happens, in whatever order and twice: the sums in Redis stay right."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.naming import new_id
from baton.policy.admission import Allowance
from baton.policy.fleet import NOTHING, Load, Role, Usage
from baton.policy.score import Order
from services.common.fleet.store import FleetStore, Need, RouterId, TicketId
from tests.support.fleet import worker
from tests.support.fleet_store import candidate, claim, plan, ticket

PERIOD_S = 5.0
LEASE_S = 10.0
CLEARLY_S = 1.0

names = st.sampled_from(["p", "d", "e"])
numbers = st.integers(0, 5)
seconds = st.sampled_from([0.0, 0.2, 0.7, 3.0])
needs = st.none() | st.builds(Need, st.integers(1, 60), seconds)
orders = st.builds(
    Order,
    due_s=st.floats(-100, 10_000),
    clock=st.sampled_from(["", "a/interactive", "b/batch"]),
    clock_rate=st.sampled_from([0.25, 1.0]),
    floor=st.sampled_from(["", "batch"]),
    floor_rate=st.just(10.0),
    late_s=st.none() | st.floats(-1, 1),
)
allowances = st.none() | st.builds(Allowance, seconds, st.none() | st.integers(-1, 3))
operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("beat"),
            names,
            st.sampled_from(["one", "two"]),
            st.integers(0, 3),
            st.sets(numbers),
            st.booleans(),
            seconds,
            st.none() | st.integers(1, 3),
        ),
        st.tuples(
            st.just("claim"),
            numbers,
            st.integers(1, 60),
            st.booleans(),
            seconds,
            st.integers(1, 4),
        ),
        st.tuples(st.just("release"), names, numbers),
        st.tuples(
            st.just("enqueue"),
            numbers,
            st.sampled_from(["router", "other"]),
            orders,
            needs,
            needs,
            allowances,
        ),
        st.tuples(st.just("leave"), numbers),
        st.tuples(st.just("take turns"), st.sampled_from(["router", "other"])),
        st.tuples(st.just("gone"), names),
    ),
    max_size=30,
)


def described(name, incarnation="one", running=0, taken=(), draining=False, load=None):
    return worker(
        name,
        Role.PREFILL if name == "p" else Role.DECODE,
        incarnation=incarnation,
        capacity=Usage(3, 100),
        running=Usage(running, 10 * running),
        taken=frozenset(claim(str(number)) for number in taken),
        draining=draining,
        load=load or Load(),
    )


async def perform(store, operation):
    match operation:
        case ("beat", name, incarnation, running, taken, draining, backlog_s, limit):
            load = Load(prompt_backlog_s=backlog_s, sequence_limit=limit)
            one = described(name, incarnation, running, taken, draining, load)
            await store.heartbeat(one, PERIOD_S)
        case ("claim", number, tokens, at_turn, prompt_s, limit):
            workers = [candidate(described(name), prompt_s, limit) for name in ("p", "d", "e")]
            possible = plan(*workers, cost=Usage(1, tokens))
            ticket_id = TicketId(str(number)) if at_turn else None
            await store.claim(claim(str(number)), [possible], LEASE_S, ticket_id)
        case ("release", name, number):
            await store.release([(name, claim(str(number)))])
        case ("enqueue", number, router, order, prefill, decode, allowance):
            one = ticket(str(number), order, prefill, decode, RouterId(router))
            await store.enqueue(one, 4, allowance)
        case ("leave", number):
            await store.leave([TicketId(str(number))])
        case ("take turns", router):
            await store.take_turns(RouterId(router))
        case ("gone", name):
            await store.deregister(name, "one")


async def told(store):
    """What the fleet says, apart from the time."""
    snapshot = await store.snapshot()
    workers = {each.worker_id: each for each in snapshot.workers}
    counts = (snapshot.waiting, snapshot.queued_s, snapshot.turns, snapshot.claims)
    return workers, counts


async def clocks(store):
    """What the clocks show that are far from being reached."""
    snapshot = await store.snapshot()
    return {
        name: snapshot.now + ahead for name, ahead in snapshot.clocks.items() if ahead > CLEARLY_S
    }


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations)
def test_every_script_may_run_twice_and_the_sums_stay_right(redis_server, performed):
    async def scenario():
        store = FleetStore(redis_server.url, new_id("fleet"), timeout_s=10.0)
        for operation in performed:
            before, _ = await told(store)
            await perform(store, operation)
            after, shown = await told(store), await clocks(store)
            await perform(store, operation)
            assert await told(store) == after
            again = await clocks(store)
            assert again == pytest.approx({name: shown.get(name) for name in again}, abs=1e-3)
            await store.check_integrity()
            if operation[0] == "claim":
                for name, each in after[0].items():
                    assert each.pending == before[name].pending or NOTHING.fits_in(each.free)
        await store.close()

    asyncio.run(scenario())
