"""Calls to a service that falls silent end soon; from then on they cost nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from baton import errors
from services.common.transfer.blobs import TransferStats
from services.common.transfer.guard import Guard


class Service:
    """Answers unless it sleeps or is gone; calls wait as long as it sleeps."""

    def __init__(self) -> None:
        self.awake = asyncio.Event()
        self.awake.set()
        self.gone = False
        self.probes = 0
        self.calls = 0
        self.stats = TransferStats()
        self.guard = Guard(self.probe, self.stats)

    async def probe(self, deadline_s: float) -> None:
        self.probes += 1
        await self._answer(deadline_s)

    async def _answer(self, deadline_s: float) -> None:
        if self.gone:
            raise errors.Unavailable("connection refused")
        try:
            async with asyncio.timeout(deadline_s):
                await self.awake.wait()
        except TimeoutError as error:
            raise errors.DeadlineExceeded("deadline") from error

    async def call(self, deadline_s: float = 30.0) -> None:
        """One guarded call."""
        async with self.guard.scope():
            self.calls += 1
            await self._answer(deadline_s)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    yield service
    await service.guard.close()


def now() -> float:
    return asyncio.get_running_loop().time()


async def closed(service: Service, patience_s: float) -> None:
    async with asyncio.timeout(patience_s):
        while service.guard.is_open:
            await asyncio.sleep(0.005)


async def test_silence_ends_the_calls_under_way_and_refuses_others(service: Service) -> None:
    await service.call()
    service.awake.clear()
    began = now()
    results = await asyncio.gather(
        service.call(), service.call(), service.call(0.2), return_exceptions=True
    )
    assert [type(result) for result in results] == [errors.DeadlineExceeded] * 3
    assert 0.5 < now() - began < 3.0
    began = now()
    for _ in range(100):
        with pytest.raises(errors.Unavailable):
            await service.call()
    assert now() - began < 0.5
    assert (service.calls, service.stats.breaker_opened) == (4, 1)


async def test_one_late_answer_is_enough_to_refuse_the_next_call(service: Service) -> None:
    service.awake.clear()
    with pytest.raises(errors.DeadlineExceeded):
        await service.call(0.5)
    assert service.guard.is_open


async def test_calls_under_way_outlive_a_failure_that_a_probe_refutes(service: Service) -> None:
    async def fail() -> None:
        async with service.guard.scope():
            raise errors.Unavailable("a connection that broke")

    async with service.guard.scope():
        with pytest.raises(errors.Unavailable):
            await asyncio.create_task(fail())
        await closed(service, 0.1)
        await asyncio.sleep(0.05)
    assert service.stats.breaker_opened == 1


async def test_calls_under_way_end_when_a_probe_confirms_a_failure(service: Service) -> None:
    service.awake.clear()
    waiting = asyncio.create_task(service.call())
    with pytest.raises(errors.DeadlineExceeded):
        await service.call(0.46)
    async with asyncio.timeout(0.6):
        with pytest.raises(errors.DeadlineExceeded):
            await waiting


async def test_it_is_found_as_soon_as_it_wakes(service: Service) -> None:
    service.awake.clear()
    with pytest.raises(errors.DeadlineExceeded):
        await service.call(0.5)
    await asyncio.sleep(1.0)
    service.awake.set()
    await closed(service, 0.1)  # a probe was waiting
    await service.call()
    probes = service.probes
    await asyncio.sleep(0.6)
    assert service.probes == probes


async def test_one_that_is_gone_is_probed_seldom(service: Service) -> None:
    service.gone = True
    with pytest.raises(errors.Unavailable):
        await service.call()
    await asyncio.sleep(1.0)
    assert service.probes == 3  # at 0, 0.25 and 0.75 seconds
    service.gone = False
    await closed(service, 2.1)


async def test_a_busy_call_does_no_harm_where_probes_are_answered(service: Service) -> None:
    async with service.guard.scope():
        await asyncio.sleep(1.2)
    assert service.probes == 2
    assert service.stats.breaker_opened == 0


async def test_a_sign_of_life_from_elsewhere_closes_it(service: Service) -> None:
    service.gone = True
    with pytest.raises(errors.Unavailable):
        await service.call()
    service.gone = False
    service.guard.heard()
    await service.call()


async def test_an_idle_guard_has_no_task(service: Service) -> None:
    before = len(asyncio.all_tasks())
    await service.call()
    async with asyncio.timeout(1):
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)


async def test_what_persists_outlives_an_open_breaker(service: Service) -> None:
    service.awake.clear()
    with pytest.raises(errors.DeadlineExceeded):
        await service.call(0.5)
    persisting = asyncio.create_task(service.guard.persist(service.call, 5.0))
    await asyncio.sleep(0.1)
    calls = service.calls
    service.awake.set()
    assert await persisting
    assert service.calls == calls + 1


async def test_what_persists_has_a_limit_and_can_be_hurried(service: Service) -> None:
    service.gone = True
    with pytest.raises(errors.Unavailable):
        await service.call()
    began = now()
    assert not await service.guard.persist(service.call, 0.1)
    assert 0.09 < now() - began < 3.0
    persisting = asyncio.create_task(service.guard.persist(service.call, 30.0))
    await asyncio.sleep(0.01)
    service.guard.hurry()
    async with asyncio.timeout(0.5):
        assert not await persisting


async def test_a_cancelled_call_is_cancelled(service: Service) -> None:
    service.awake.clear()
    calling = asyncio.create_task(service.call())
    await asyncio.sleep(0.01)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not service.guard.is_open
