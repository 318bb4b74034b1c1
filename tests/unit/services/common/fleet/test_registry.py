"""Heartbeats."""

import asyncio
from dataclasses import replace

from baton.policy.fleet import NOTHING, Usage
from services.common.fleet.registry import Registry
from tests.support.fleet import worker


async def workers(store):
    return (await store.snapshot()).workers


async def test_registers_at_start_and_deregisters_at_close(store):
    registry = Registry(store, lambda: worker())
    await registry.start()
    assert await workers(store) == (worker(),)
    await registry.close()
    assert await workers(store) == ()


async def test_a_poke_tells_at_once(store):
    state = worker()
    registry = Registry(store, lambda: state, period_s=60.0)
    await registry.start()
    state = replace(state, running=Usage(1, 10))
    registry.poke()
    async with asyncio.timeout(1):
        while (await workers(store))[0].running == NOTHING:
            await asyncio.sleep(0.005)
    await registry.close()


async def test_a_description_that_fails_once_does_not_end_the_heartbeats(store, caplog):
    answers = [worker(), ValueError("once"), worker(draining=True)]

    def describe():
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    registry = Registry(store, describe, period_s=0.02)
    await registry.start()
    async with asyncio.timeout(2):
        while not (await workers(store))[0].draining:
            await asyncio.sleep(0.005)
    await registry.close()
    assert "once" in caplog.text


async def test_closing_before_starting_is_allowed(store):
    await Registry(store, lambda: worker()).close()
    assert await workers(store) == ()
