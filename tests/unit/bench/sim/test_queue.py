"""The simulated queue against the scripts: the same operations, the same turns and claims."""

import asyncio
from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.naming import new_id
from baton.policy.admission import Allowance
from baton.policy.fleet import Load, Role, Usage
from baton.policy.score import Order
from bench.sim.life import Life
from bench.sim.queue import FleetQueue, Need, Ticket
from services.common.fleet import store as real
from tests.support.fleet_store import candidate, claim, plan, ticket
from tests.support.policy import worker
from tests.support.redis import RedisServer

PERIOD_S = LEASE_S = 60.0
ROLES = {"p": Role.PREFILL, "d": Role.DECODE, "e": Role.DECODE}

names, numbers = st.sampled_from(sorted(ROLES)), st.integers(0, 7)
seconds = st.sampled_from([0.0, 0.25, 0.5, 3.0])  # whose sums are exact
tokens = st.sampled_from([10, 40, 80])
needs = st.dictionaries(st.sampled_from(Role), st.tuples(tokens, seconds), min_size=1)
allowances = st.none() | st.builds(Allowance, seconds, st.none() | st.integers(-1, 3))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("beat"), names, st.integers(0, 3), seconds, st.none() | st.just(1)),
        st.tuples(st.just("enqueue"), numbers, st.integers(1, 3), needs, allowances),
        st.tuples(st.just("claim"), numbers, tokens, seconds, st.integers(1, 3)),
        st.tuples(st.just("release"), st.integers(0, 9)),
    ),
    min_size=5,
    max_size=30,
)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    server = RedisServer()
    yield server.url
    server.stop()


class Both:
    """One fleet in Redis, and one simulated; every answer is the same from both."""

    def __init__(self, url: str) -> None:
        fleet = new_id("fleet")
        self.store = real.FleetStore(url, fleet, timeout_s=10.0)
        self.queue = FleetQueue(lambda: 0.0, lambda _: None)
        self._redis = redis.Redis.from_url(url)
        self._prefix = f"{{baton:{fleet}}}:"
        self._tickets: dict[int, Ticket] = {}
        self._orders: dict[int, Order] = {}
        self._claimed = []

    async def beat(self, name, running, backlog_s, limit):
        used, load = Usage(running, 10 * running), Load(backlog_s, sequence_limit=limit)
        told = worker(name, ROLES[name], capacity=Usage(3, 100))
        self.queue.heartbeat(told, used, load)
        told = worker(
            name,
            ROLES[name],
            capacity=Usage(3, 100),
            running=used,
            backlog_s=backlog_s,
            sequence_limit=limit,
        )
        await self.store.heartbeat(told, PERIOD_S)

    async def enqueue(self, number, due, needs, allowance):
        if number not in self._tickets:
            life = Life(number, 0.0, 100, 1, 1, (), 1.0, 1.0, False, "")
            self._tickets[number] = Ticket(life, {role: Need(*n) for role, n in needs.items()})
            self._orders[number] = Order(10.0 * due + number)  # time goes on a little in Redis
        one, order = self._tickets[number], self._orders[number]
        let_in = self.queue.enqueue(one, order, allowance)
        asked = {role.value: real.Need(n.kv_tokens, n.prompt_s) for role, n in one.needs.items()}
        same = ticket(str(number), order, asked.get("prefill"), asked.get("decode"))
        answer = await self.store.enqueue(same, None, allowance)
        assert let_in == (answer.place is not real.Place.REFUSED)
        if not let_in:
            del self._tickets[number]

    async def claim(self, number, tokens, prompt_s, limit):
        one = self._tickets.get(number)
        known = self.queue.workers()
        if one is None or not known:
            return
        serial = claim(f"{number}-{len(self._claimed)}")
        workers = [candidate(each, prompt_s, limit) for each in known]
        plans = [plan(*workers, cost=Usage(1, tokens))]
        mine = self.queue.claim(serial, plans, one)
        assert mine == await self.store.claim(serial, plans, LEASE_S, real.TicketId(str(number)))
        if mine:
            del self._tickets[number]
            self._claimed += [(each.worker.worker_id, serial) for each in mine]

    async def release(self, number):
        if number < len(self._claimed):
            worker_id, serial = self._claimed[number]
            self.queue.release(serial, worker_id)
            await self.store.release([(worker_id, serial)])

    def agree(self):
        for key, belongs in (("turns", lambda one: one.turn), ("queue", lambda one: one.waiting)):
            there = {int(name) for name in self._redis.zrange(self._prefix + key, 0, -1)}
            assert there == {number for number, one in self._tickets.items() if belongs(one)}, key

    async def close(self):
        await self.store.check_integrity()
        await self.store.close()
        self._redis.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations)
def test_turns_and_claims_are_those_of_the_scripts(redis_url, performed):
    async def scenario():
        both = Both(redis_url)
        for name in ROLES:
            await both.beat(name, 1, 0.0, None)
        for what, *arguments in performed:
            await getattr(both, what)(*arguments)
            both.agree()
        await both.close()

    asyncio.run(scenario())
