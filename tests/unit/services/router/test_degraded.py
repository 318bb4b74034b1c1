"""Workers of one role that stand in for the other, and prompts beside a decode batch."""

import asyncio

from baton.policy.cost import StepCost
from baton.policy.fleet import Load, Role, Usage
from tests.support.fleet import demand, registered, router, until, worker

COST = StepCost(0.001, 0.001, 0.0, 0.001, 0.0, relative_error=0.1)
PREFILL = worker("p", Role.PREFILL, cost=COST)
DECODE = worker("d", cost=COST)


async def test_without_decode_workers_prefill_workers_do_all(redis_server, fleet):
    async with registered(redis_server.url, fleet, PREFILL), router(redis_server.url, fleet) as one:
        placement = await one.dispatcher.turn(demand("r", prompt=10, most=5))
        assert (placement.prefill, placement.decode.worker_id) == (None, "p")
        assert (placement.degraded, placement.local) == (True, False)
        pending = {each.worker_id: each.pending for each in (await one.store.snapshot()).workers}
        assert pending == {"p": Usage(1, 15)}
        other = await one.dispatcher.claim_decode(demand("s"))
        assert other.worker_id == "p"
        resumed = await one.dispatcher.turn(demand("t", emitted=2), whole=True)
        assert resumed.decode.worker_id == "p"
        assert one.view.degraded.startswith("no decode worker")


async def test_a_decode_worker_that_comes_back_is_used_again(redis_server, fleet):
    async with registered(redis_server.url, fleet, PREFILL), router(redis_server.url, fleet) as one:
        assert (await one.dispatcher.turn(demand("a"))).degraded
        async with registered(redis_server.url, fleet, DECODE):
            await until(lambda: one.view.degraded == "")
            placement = await one.dispatcher.turn(demand("b"))
            assert placement.decode.worker_id == "d"
            assert not placement.degraded


async def test_who_waits_when_the_last_decode_worker_leaves_goes_to_a_prefill_worker(
    redis_server, fleet
):
    full = worker("d", cost=COST, running=Usage(4, 100))
    async with registered(redis_server.url, fleet, PREFILL), router(redis_server.url, fleet) as one:
        async with registered(redis_server.url, fleet, full):
            await until(lambda: len(one.view.workers) == 2)
            waiting = [
                asyncio.create_task(one.dispatcher.turn(demand("new"))),
                asyncio.create_task(one.dispatcher.claim_decode(demand("goes on"))),
            ]
            await until(lambda: one.dispatcher.waiting == 2)
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in waiting)
        async with asyncio.timeout(4):
            placement, decode = await asyncio.gather(*waiting)
        assert placement.decode.worker_id == decode.worker_id == "p"


async def test_a_prompt_goes_to_an_idle_decode_worker_while_prefill_workers_are_busy(
    redis_server, fleet
):
    busy = worker("p", Role.PREFILL, cost=COST, load=Load(prompt_backlog_s=0.8))
    async with (
        registered(redis_server.url, fleet, busy, DECODE),
        router(redis_server.url, fleet) as one,
    ):
        local = await one.dispatcher.turn(demand("r", prompt=100))
        assert (local.prefill, local.decode.worker_id) == (None, "d")
        assert (local.local, local.degraded) == (True, False)


async def test_a_handoff_that_is_measured_to_be_free_leaves_prompts_to_prefill_workers(
    redis_server, fleet
):
    slower = worker("d", cost=StepCost(0.001, 0.00105, 0.0, 0.001, 0.0, 0.1))
    async with (
        registered(redis_server.url, fleet, PREFILL, slower),
        router(redis_server.url, fleet) as one,
    ):
        first = await one.dispatcher.turn(demand("a", prompt=100))
        assert first.local
        await one.dispatcher.release("a")
        await asyncio.sleep(0.2)
        one.dispatcher.observe_handoff(gap_s=0.02, step_s=0.02)
        second = await one.dispatcher.turn(demand("b", prompt=100))
        assert second.prefill is not None
