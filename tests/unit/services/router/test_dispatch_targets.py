"""Targets: who is refused, who is placed where, and what is predicted; with a real Redis."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from baton.errors import Exhausted
from baton.policy.cost import StepCost
from baton.policy.fleet import Load, Role, Usage
from baton.policy.score import Urgency
from services.router.dispatch import DispatchConfig
from services.router.request import ClassTargets
from tests.support.fleet import demand, registered, router, until, worker

COST = StepCost(0.001, 0.001, 0.0, 0.01, 0.0, relative_error=0.1)
"""A prompt token takes 1 ms, a sequence 10 ms a step."""
DECODE = worker("d", cost=COST, capacity=Usage(20, 5000))


def prefill(backlog_s=0.0, name="p"):
    return worker(
        name,
        Role.PREFILL,
        cost=COST,
        capacity=Usage(20, 5000),
        load=Load(prompt_backlog_s=backlog_s),
    )


@asynccontextmanager
async def served(redis_server, fleet, *workers, **config):
    """A router that knows the workers, and a Redis that has settled."""
    chosen = DispatchConfig(**{"disaggregation": "always", "ttft_slack_s": 0.2, **config})
    async with (
        registered(redis_server.url, fleet, *workers) as registries,
        router(redis_server.url, fleet, chosen) as one,
    ):
        await until(lambda: one.view.settled)
        yield one, registries


async def test_what_even_an_idle_fleet_cannot_hold_is_refused_for_good(redis_server, fleet):
    async with served(redis_server, fleet, prefill(), DECODE) as (one, _):
        with pytest.raises(Exhausted) as refused:
            await one.dispatcher.turn(demand("r", prompt=800), Urgency(ttft_target_s=0.1))
        assert (refused.value.reason, refused.value.retry_after) == ("TARGET_OUT_OF_REACH", None)
        await one.dispatcher.turn(demand("a", prompt=100), Urgency(ttft_target_s=0.1))
        await one.dispatcher.turn(demand("b", prompt=800))


async def test_the_default_target_grows_with_the_prompt(redis_server, fleet):
    targets = ClassTargets(interactive_ttft_s=0.3)
    async with served(redis_server, fleet, prefill(), DECODE, targets=targets) as (one, _):
        short = await one.dispatcher.turn(demand("a", prompt=100))
        long = await one.dispatcher.turn(demand("b", prompt=800))
        assert short.ttft_target_s == 0.3
        assert long.ttft_target_s == pytest.approx(2 * 0.804, abs=0.01)


@pytest.mark.parametrize("urgency", [Urgency(), Urgency(ttft_target_s=0.5)])
async def test_a_refused_request_is_let_in_after_the_time_told_and_not_at_half(
    redis_server, fleet, urgency
):
    targets = ClassTargets(interactive_ttft_s=0.5)
    begin = time.monotonic()

    def describe():
        return prefill(max(0.0, begin + 2.6 - time.monotonic()))

    async with served(redis_server, fleet, prefill(2.6), DECODE, targets=targets) as (one, them):
        them[0]._describe = describe
        them[0].poke()
        await asyncio.sleep(0.1)
        with pytest.raises(Exhausted) as refused:
            await one.dispatcher.turn(demand("r"), urgency)
        told = time.monotonic()
        assert refused.value.reason == "TARGET_MISSED"
        after_s = refused.value.retry_after
        assert 0.5 < after_s < 2.0
        await asyncio.sleep(after_s / 2)
        with pytest.raises(Exhausted):
            await one.dispatcher.turn(demand("half"), urgency)
        await asyncio.sleep(told + after_s + 0.15 - time.monotonic())
        async with asyncio.timeout(2):
            placement = await one.dispatcher.turn(demand("again"), urgency)
        assert placement.prefill.worker_id == "p"
        assert placement.predicted_ttft_s < 0.5 + 0.2


async def test_one_worker_with_a_long_prompt_does_not_stop_others(redis_server, fleet):
    targets = ClassTargets(interactive_ttft_s=0.5)
    workers = (prefill(20.0), prefill(0.0, "q"), DECODE)
    async with served(redis_server, fleet, *workers, targets=targets) as (one, _):
        placement = await one.dispatcher.turn(demand("r"))
        assert placement.prefill.worker_id == "q"


async def test_retries_streams_that_go_on_and_batch_requests_are_let_in(redis_server, fleet):
    targets = ClassTargets(interactive_ttft_s=0.2)
    busy = (prefill(5.0), replace(DECODE, load=Load(prompt_backlog_s=5.0)))
    async with served(redis_server, fleet, *busy, targets=targets) as (one, them):
        tasks = [
            asyncio.create_task(one.dispatcher.turn(demand("retry", attempt=1))),
            asyncio.create_task(one.dispatcher.turn(demand("goes on", emitted=3), whole=True)),
            asyncio.create_task(one.dispatcher.turn(demand("batch"), Urgency(batch=True))),
        ]
        with pytest.raises(Exhausted):
            await one.dispatcher.turn(demand("new"))
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in tasks)
        for registry, idle in zip(them, (prefill(), DECODE), strict=True):
            registry._describe = lambda idle=idle: idle
            registry.poke()
        async with asyncio.timeout(3):
            placements = await asyncio.gather(*tasks)
        assert [one.prefill is None for one in placements] == [False, True, False]


async def test_what_set_a_target_of_its_own_is_refused_once_that_is_lost(redis_server, fleet):
    """However it was let in: a prediction can be wrong."""
    async with served(redis_server, fleet, prefill(), DECODE, ttft_slack_s=0.2) as (one, them):
        them[0]._describe = lambda: prefill(0.25)
        them[0].poke()
        await until(lambda: one.view.workers[0].load.prompt_backlog_s == 0.25)
        stuck = replace(prefill(0.25), running=Usage(20, 5000))
        them[0]._describe = lambda: stuck
        begin = time.monotonic()
        them[0].poke()
        asked = asyncio.create_task(
            one.dispatcher.turn(demand("a", prompt=100), Urgency(ttft_target_s=0.6))
        )
        patient = asyncio.create_task(one.dispatcher.turn(demand("b", prompt=100)))
        with pytest.raises(Exhausted, match="in time any more") as refused:
            async with asyncio.timeout(5):
                await asked
        assert time.monotonic() - begin >= 0.8
        assert refused.value.reason == "TARGET_MISSED"
        assert refused.value.retry_after > 0
        assert not patient.done(), "it set none"
        patient.cancel()
        await asyncio.gather(patient, return_exceptions=True)


async def test_nobody_is_refused_before_the_fleet_is_known(own_redis):
    targets = ClassTargets(interactive_ttft_s=0.1)
    config = DispatchConfig(disaggregation="always", targets=targets, ttft_slack_s=0.0)
    async with (
        registered(own_redis.url, "f", prefill(5.0), DECODE, period_s=0.5),
        router(own_redis.url, "f", config) as one,
    ):
        assert not one.view.settled
        waiting = asyncio.create_task(one.dispatcher.turn(demand("r")))
        await until(lambda: one.dispatcher.waiting == 1)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_latency_target_limits_the_batch_until_the_first_token_is_late(redis_server, fleet):
    urgency = Urgency(ttft_target_s=0.4, itl_target_s=0.025)  # two sequences
    async with served(redis_server, fleet, prefill(), DECODE, ttft_slack_s=2.0) as (one, _):
        for name in ("a", "b"):
            await one.dispatcher.turn(demand(name), urgency)
        begin = time.monotonic()
        third = asyncio.create_task(one.dispatcher.turn(demand("c"), urgency))
        async with asyncio.timeout(1):
            other = await one.dispatcher.turn(demand("any"), Urgency(itl_target_s=1.0))
        assert other.itl_target_s == 1.0
        assert not third.done()
        async with asyncio.timeout(3):
            placement = await third
        assert time.monotonic() - begin > 0.35
        assert placement.predicted_itl_s == pytest.approx(0.041, abs=0.002)


async def test_a_sequence_that_goes_on_insists_on_its_latency_for_a_moment_only(
    redis_server, fleet
):
    full = replace(DECODE, running=Usage(3, 30))
    wanted = demand("r", itl_target_s=0.025)
    async with served(redis_server, fleet, full) as (one, _):
        begin = time.monotonic()
        async with asyncio.timeout(3):
            chosen = await one.dispatcher.claim_decode(wanted)
        assert chosen.worker_id == "d"
        assert time.monotonic() - begin > 0.4


async def test_predictions_come_from_the_backlog_and_the_prompt(redis_server, fleet):
    async with served(redis_server, fleet, prefill(0.3), DECODE) as (one, _):
        placement = await one.dispatcher.turn(demand("r", prompt=200), waited_s=0.1)
        assert placement.predicted_ttft_s == pytest.approx(0.1 + 0.3 + 0.201, abs=0.05)
        assert placement.predicted_itl_s == pytest.approx(0.011)
        assert (placement.local, placement.degraded) == (False, False)
        after = await one.dispatcher.turn(demand("s", prompt=200))
        assert after.predicted_ttft_s == pytest.approx(0.3 + 2 * 0.201, abs=0.05)


async def test_predictions_of_those_who_wait_count_the_queue(redis_server, fleet):
    async with served(redis_server, fleet, prefill(1.2), DECODE) as (one, them):
        first = asyncio.create_task(one.dispatcher.turn(demand("a", prompt=500)))
        await until(lambda: one.dispatcher.waiting == 1)
        await asyncio.sleep(0.1)
        second = asyncio.create_task(one.dispatcher.turn(demand("b", prompt=100)))
        await asyncio.sleep(0.1)
        them[0]._describe = prefill
        them[0].poke()
        async with asyncio.timeout(3):
            predicted = [(await task).predicted_ttft_s for task in (first, second)]
        assert predicted[0] == pytest.approx(1.2 + 0.501, abs=0.1)
        assert predicted[1] == pytest.approx(1.2 + 0.501 + 0.101, abs=0.1)


async def test_a_flood_of_one_tenant_does_not_hold_up_another(redis_server, fleet):
    targets = ClassTargets(interactive_ttft_s=60.0)
    async with served(redis_server, fleet, prefill(5.0), DECODE, targets=targets) as (one, them):
        served_names = []

        async def request(name, tenant):
            await one.dispatcher.turn(demand(name, prompt=200), Urgency(tenant=tenant))
            served_names.append(name)

        flood = [asyncio.create_task(request(f"a{n}", "a")) for n in range(12)]
        await until(lambda: one.dispatcher.waiting == 12)
        await asyncio.sleep(0.2)
        other = asyncio.create_task(request("b", "b"))
        await asyncio.sleep(0.1)
        them[0]._describe = prefill
        them[0].poke()
        async with asyncio.timeout(10):
            await other
        assert served_names.index("b") < 5
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)


async def test_a_retry_is_spent_from_the_fleets_budget(redis_server, fleet):
    config = {"retry_reserve": 2.0, "retry_ratio": 0.5}
    async with served(redis_server, fleet, prefill(), DECODE, **config) as (one, _):
        spend = one.dispatcher.spend_retry
        assert [await spend() for _ in range(3)] == [True, True, False]
        for name in ("a", "b"):
            await one.dispatcher.turn(demand(name))
        await one.dispatcher.turn(demand("c", attempt=1))
        assert [await spend() for _ in range(2)] == [True, False]


async def test_without_redis_workers_are_kept_just_busy_too(own_redis):
    config = DispatchConfig(disaggregation="always")
    async with (
        registered(own_redis.url, "f", prefill(), DECODE),
        router(own_redis.url, "f", config) as one,
    ):
        await one.dispatcher.turn(demand("before", prompt=100))
        own_redis.stop()
        for name in ("a", "b"):  # 0.7 s each; the worker wants one second
            async with asyncio.timeout(2):
                await one.dispatcher.turn(demand(name, prompt=700))
        begin = time.monotonic()
        async with asyncio.timeout(5):
            await one.dispatcher.turn(demand("c", prompt=700))
        assert time.monotonic() - begin > 0.2
