"""A stream goes on at another router when its own dies, and no one else's is disturbed."""

import pytest

from baton import errors, events
from baton.client import AsyncClient
from services.gateway.generation import Generation
from tests.support.fake_router import FakeRouter, accepted, completed, delta


def dying(reason):
    def script(request):
        yield accepted(request, seed=9)
        yield delta("Hello", 7)
        raise errors.Unavailable("gone", reason=reason)

    return script


def going_on(request):
    yield accepted(request)
    if not request.HasField("resume_from"):
        yield delta("Hello", 7)
    yield delta(" sea", 8)
    yield completed(request)


async def test_it_goes_on_where_it_was():
    tries = []

    def script(request):
        tries.append(request)
        yield from dying("DRAINING")(request) if len(tries) == 1 else going_on(request)

    with FakeRouter(script) as router:
        async with AsyncClient(router.address) as client:
            completion = await Generation(client, "hi", {"request_id": "a"}).complete()
    assert completion.text == "Hello sea"
    resumed = tries[1].resume_from
    assert resumed.seed == 9
    assert [list(one.ids) for one in resumed.emitted] == [[7]]
    assert tries[1].text == "hi"


async def test_two_routers_by_address():
    with FakeRouter(going_on) as alive:
        dead = FakeRouter()
        async with AsyncClient(f"{dead.address},{alive.address}") as client:
            completion = await Generation(client, "hi", {}).complete()
        dead.__exit__()
    assert completion.text == "Hello sea"


@pytest.mark.parametrize("reason", ["DRAINING", "NO_WORKER"])
async def test_it_gives_up(reason):
    with FakeRouter(dying(reason)) as router:
        async with AsyncClient(router.address) as client:
            stream = Generation(client, "hi", {}).stream()
            seen = []
            with pytest.raises(errors.Unavailable):
                async for event in stream:
                    seen.append(event)
    assert all(isinstance(event, events.Delta) for event in seen)
    assert len(router.requests) == (3 if reason == "DRAINING" else 1)


@pytest.mark.parametrize("reason", ["TOO_MANY_STREAMS", "RATE_LIMITED"])
async def test_a_stream_that_goes_on_waits_for_its_tenants_limits(reason):
    """The dead router's stream still counts as the tenant's."""
    tries = []

    def script(request):
        tries.append(request)
        if len(tries) == 1:
            yield from dying("DRAINING")(request)
        elif len(tries) < 4:
            raise errors.Exhausted("too much", reason=reason, retry_after=0.01)
        else:
            yield from going_on(request)

    with FakeRouter(script) as router:
        async with AsyncClient(router.address) as client:
            completion = await Generation(client, "hi", {}).complete()
    assert completion.text == "Hello sea"
    assert [list(one.ids) for one in tries[3].resume_from.emitted] == [[7]]


@pytest.mark.parametrize(("began", "reason"), [(False, "TOO_MANY_STREAMS"), (True, "QUEUE_FULL")])
async def test_limits_are_not_waited_for_otherwise(began, reason):
    tries = []

    def script(request):
        tries.append(request)
        if began and len(tries) == 1:
            yield from dying("DRAINING")(request)
        raise errors.Exhausted("too much", reason=reason, retry_after=0.01)

    with FakeRouter(script) as router:
        async with AsyncClient(router.address) as client:
            with pytest.raises(errors.Exhausted):
                await Generation(client, "hi", {}).complete()
    assert len(tries) == 1 + began


async def test_limits_are_not_waited_for_for_ever():
    tries = []

    def script(request):
        tries.append(request)
        if len(tries) == 1:
            yield from dying("DRAINING")(request)
        raise errors.Exhausted("too much", reason="RATE_LIMITED", retry_after=0.01)

    with FakeRouter(script) as router:
        async with AsyncClient(router.address) as client:
            with pytest.raises(errors.Exhausted):
                await Generation(client, "hi", {}, patience_s=0.3).complete()
    assert len(tries) > 2
