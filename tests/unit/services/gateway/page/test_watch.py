"""The shared look: once a second for any number of pages, not at all when nobody looks."""

import asyncio

import pytest

from baton.errors import NotFound, PermissionDenied, Unauthenticated, Unavailable
from services.gateway.page import access
from services.gateway.page.watch import EVERY_S, MAX_ROWS, Watch
from tests.support.clock import FakeClock
from tests.support.page import FakeUpstream, fleet, report, span


@pytest.fixture
def clock():
    return FakeClock()


def watching(clock, *routers, **options):
    return Watch(routers, clock=lambda: 1000.0 + clock.now, monotonic=clock, **options)


def looks(router):
    return router.calls.count("fleet")


async def test_many_pages_share_one_look(clock):
    router = FakeUpstream()
    router.gate = asyncio.Event()
    watch = watching(clock, router)
    pages = [asyncio.create_task(watch.live("")) for _ in range(40)]
    await asyncio.sleep(0)
    router.gate.set()
    bodies = await asyncio.gather(*pages)
    assert {body["model"] for body in bodies} == {"tiny"}
    assert sorted(router.calls) == ["check", "fleet", "requests"]


async def test_looks_are_a_second_apart_and_only_when_asked_for(clock):
    router = FakeUpstream()
    watch = watching(clock, router)
    for _ in range(20):
        await watch.live("")
        clock.advance(EVERY_S / 10)
    assert looks(router) == 2
    clock.advance(3600)
    await asyncio.sleep(0.01)
    assert looks(router) == 2  # nobody looks
    await watch.live("")
    assert looks(router) == 3


async def test_a_page_that_comes_during_a_look_shares_it(clock):
    router = FakeUpstream()
    watch = watching(clock, router)
    await watch._access.check("")
    router.gate = asyncio.Event()
    first = asyncio.create_task(watch.live(""))
    await asyncio.sleep(0.01)
    assert looks(router) == 1
    second = asyncio.create_task(watch.live(""))
    await asyncio.sleep(0.01)
    router.gate.set()
    assert (await first)["model"] == (await second)["model"] == "tiny"
    assert looks(router) == 1


async def test_a_page_that_leaves_takes_nothing_from_the_others(clock):
    router = FakeUpstream()
    watch = watching(clock, router)
    await watch.live("")
    clock.advance(EVERY_S)
    router.gate = asyncio.Event()
    leaves, stays = [asyncio.create_task(watch.live("")) for _ in range(2)]
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.sleep(0)
    router.gate.set()
    assert (await stays)["model"] == "tiny"
    assert looks(router) == 2


async def test_a_page_is_told_what_is_new(clock):
    router = FakeUpstream()
    router.reports += [report(name, arrival_s=990.0 + i) for i, name in enumerate("abc")]
    watch = watching(clock, router)
    first = await watch.live("")
    assert [one["id"] for one in first["requests"]] == ["a", "b", "c"]
    router.reports.append(report("d", arrival_s=995.0))
    clock.advance(EVERY_S)
    second = await watch.live("", after=first["last_number"])
    assert [one["id"] for one in second["requests"]] == ["d"]
    assert not second["restarted"]


async def test_requests_in_progress_are_told_at_each_look_and_not_kept(clock):
    router = FakeUpstream()
    router.running = [report("going", outcome="UNSPECIFIED", tokens=3)]
    watch = watching(clock, router)
    [going] = (await watch.live(""))["in_progress"]
    assert (going["id"], going["outcome"]) == ("going", "running")
    router.running = []
    clock.advance(EVERY_S)
    seen = await watch.live("")
    assert seen["in_progress"] == seen["requests"] == []


async def test_a_page_older_than_the_gateway_starts_anew(clock):
    router = FakeUpstream()
    router.reports.append(report("a"))
    body = await watching(clock, router).live("", after=500)
    assert body["restarted"]
    assert [one["id"] for one in body["requests"]] == ["a"]


async def test_answers_are_bounded(clock):
    router = FakeUpstream()
    router.reports += [report(f"r{i}") for i in range(MAX_ROWS + 50)]
    body = await watching(clock, router).live("")
    assert len(body["requests"]) == MAX_ROWS
    assert body["requests"][-1]["id"] == f"r{MAX_ROWS + 49}"


async def test_a_routers_restart_loses_nothing_and_repeats_nothing(clock):
    router = FakeUpstream()
    router.reports += [report("a"), report("b")]
    watch = watching(clock, router)
    first = await watch.live("")
    router.reports[:] = [report("c")]
    clock.advance(EVERY_S)
    second = await watch.live("", after=first["last_number"])
    assert [one["id"] for one in second["requests"]] == ["c"]


async def test_several_routers_are_one_picture(clock):
    one, other = FakeUpstream(), FakeUpstream()
    one.answer, other.answer = fleet(running=2, waiting=3), fleet(running=5, waiting=3)
    one.reports.append(report("late", arrival_s=900.0))
    other.reports.append(report("early", arrival_s=800.0))
    body = await watching(clock, one, other).live("")
    assert (body["routers"], body["running"], body["waiting"]) == (2, 7, 3)
    assert [row["id"] for row in body["requests"]] == ["early", "late"]


async def test_one_silent_router_of_two_is_told(clock):
    one, other = FakeUpstream(), FakeUpstream()
    other.broken = Unavailable("no answer from 127.0.0.1:7601")
    body = await watching(clock, one, other).live("")
    assert body["problem"] == "no answer from 127.0.0.1:7601"
    assert body["routers"] == 1


async def test_without_any_router_it_says_so_and_tries_again(clock):
    router = FakeUpstream()
    watch = watching(clock, router)
    await watch.live("")
    router.broken = Unavailable("gone")
    clock.advance(EVERY_S)
    for _ in range(5):
        with pytest.raises(Unavailable, match="gone"):
            await watch.live("")
    assert looks(router) == 2
    router.broken = None
    clock.advance(EVERY_S)
    assert (await watch.live(""))["problem"] == ""


async def test_keys_are_checked_for_everyone_who_comes(clock):
    router = FakeUpstream(operators=["good"], tenants=["tenant"])
    watch = watching(clock, router)
    with pytest.raises(Unauthenticated):
        await watch.live("")
    await watch.live("good")
    with pytest.raises(Unauthenticated):
        await watch.live("bad")
    with pytest.raises(PermissionDenied):
        await watch.live("tenant")
    assert looks(router) == 1


async def test_a_key_is_believed_for_some_seconds_and_no_longer(clock):
    router = FakeUpstream(operators=["key"])
    watch = watching(clock, router)
    for _ in range(5):
        await watch.live("key")
    assert router.calls.count("check") == 1
    router.operators = ["another"]
    clock.advance(access.CHECKED_S)
    with pytest.raises(Unauthenticated):
        await watch.live("key")


async def test_a_key_that_ends_between_two_checks_takes_no_other_page_down(clock):
    router = FakeUpstream(operators=["ends", "stays"])
    watch = watching(clock, router)
    await watch.live("ends")
    await watch.live("stays")
    router.operators = ["stays"]
    clock.advance(EVERY_S)
    with pytest.raises(Unavailable):  # and not Unauthenticated: others share this look
        await watch.live("ends")
    with pytest.raises(Unauthenticated):
        await watch.live("ends")
    clock.advance(EVERY_S)
    assert (await watch.live("stays"))["model"] == "tiny"


async def test_believed_keys_are_bounded(clock):
    router = FakeUpstream()
    known = access.Access([router], clock)
    for number in range(access.MAX_KEYS + 20):
        await known.check(str(number))
    assert len(known._accepted) == access.MAX_KEYS


async def test_a_trace_asks_with_the_callers_key(clock):
    router = FakeUpstream(operators=["key"])
    router.spans["r"] = [span("queue", 10.5, 0.5, "b", "a"), span("http", 10.0, 2.0, "a")]
    watch = watching(clock, router)
    body = await watch.trace("key", "r")
    assert [one["name"] for one in body["spans"]] == ["http", "queue"]
    assert body["spans"][1]["start_s"] == pytest.approx(0.5)
    assert body["spans"][1]["parent"] == body["spans"][0]["id"]
    assert body["silent"] == ["decode-1"]
    with pytest.raises(NotFound):
        await watch.trace("key", "unknown")
    with pytest.raises(Unauthenticated):
        await watch.trace("", "r")


async def test_a_trace_is_put_together_from_every_router_and_this_process(clock):
    one, other, none = FakeUpstream(), FakeUpstream(), FakeUpstream()
    decode = span("decode", 2.0, 1.0, "d", "g")
    one.spans["r"] = [decode]
    other.spans["r"] = [span("generate", 1.0, 2.0, "g", "h"), decode]
    asked = []

    def own(trace_ids):
        asked.append(trace_ids)
        return [span("http", 0.5, 3.0, "h")]

    body = await watching(clock, one, none, other, own_spans=own).trace("", "r")
    assert [each["name"] for each in body["spans"]] == ["http", "generate", "decode"]
    assert asked == [{decode.trace_id}]


async def test_a_trace_that_nobody_knows_and_a_router_that_is_away(clock):
    one, other = FakeUpstream(), FakeUpstream()
    watch = watching(clock, one, other)
    with pytest.raises(NotFound):
        await watch.trace("", "r")
    other.broken = Unavailable("gone")
    with pytest.raises(Unavailable):
        await watch.trace("", "r")


async def test_closing_ends_what_is_under_way(clock):
    router = FakeUpstream()
    router.gate = asyncio.Event()
    watch = watching(clock, router)
    page = asyncio.create_task(watch.live(""))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await watch.close()
    with pytest.raises(asyncio.CancelledError):
        await page


class _Doctor:
    def __init__(self):
        self.seen = []

    async def verdict(self, _fleets, reports):
        self.seen.append(len(reports))
        return {"state": "good", "headline": "Fine.", "findings": []}


async def test_the_doctor_sees_each_look_once(clock):
    router, doctor = FakeUpstream(), _Doctor()
    router.reports.append(report())
    watch = watching(clock, router, diagnosis=doctor)
    await watch.live("")
    assert (await watch.live(""))["verdict"]["headline"] == "Fine."
    clock.advance(EVERY_S)
    await watch.live("")
    assert doctor.seen == [1, 0]
