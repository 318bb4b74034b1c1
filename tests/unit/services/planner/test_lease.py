"""Who leads, against a Kubernetes that keeps its objects."""

import asyncio
from datetime import datetime

import pytest

from services.planner.lease import LEAD_S, LEASE_S, RENEW_S, LeaseElection
from services.planner.permissions import RULES
from tests.support.clock import FakeClock
from tests.support.kubernetes import LEASE, LEASES, NAMESPACE

KEY = (LEASES, NAMESPACE, LEASE)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def election(api, clock):
    def of(identity):
        return LeaseElection(api, NAMESPACE, LEASE, identity, clock)

    return of


def holder(cluster):
    return cluster.get(KEY)["spec"]["holderIdentity"]


async def test_the_first_one_leads(cluster, election, clock):
    one, two = election("one"), election("two")
    assert one.left_s == 0
    for planner in (one, two):
        await planner.turn()
    assert (one.left_s, two.left_s) == (LEAD_S, 0)
    assert holder(cluster) == "one"


async def test_it_leads_as_long_as_it_renews(cluster, election, clock):
    one, two = election("one"), election("two")
    for _ in range(20):
        clock.advance(RENEW_S)
        for planner in (one, two):
            await planner.turn()
        assert one.left_s == LEAD_S
        assert two.left_s == 0
    spec = cluster.get(KEY)["spec"]
    assert spec["leaseTransitions"] == 0
    assert spec["leaseDurationSeconds"] == LEASE_S
    acquired, renewed = (
        datetime.fromisoformat(spec[f"{what}Time"]) for what in ("acquire", "renew")
    )
    assert acquired < renewed


async def test_another_one_takes_over_from_one_that_is_gone(cluster, election, clock):
    one, two = election("one"), election("two")
    for planner in (one, two):
        await planner.turn()
    clock.advance(LEAD_S)
    assert one.left_s == 0
    await two.turn()
    assert two.left_s == 0
    clock.advance(LEASE_S - LEAD_S + 0.1)
    await two.turn()
    assert (holder(cluster), two.left_s) == ("two", pytest.approx(LEAD_S))
    await one.turn()
    assert one.left_s == 0
    assert cluster.get(KEY)["spec"]["leaseTransitions"] == 1


async def test_the_holders_clock_does_not_matter(cluster, election, clock):
    one, two = election("one"), election("two")
    await one.turn()
    lease = cluster.get(KEY)
    lease["spec"]["renewTime"] = "2001-01-01T00:00:00.000001Z"
    cluster.put(KEY, lease)
    for _ in range(3):
        await two.turn()
        clock.advance(LEASE_S / 3)
    assert two.left_s == 0


async def test_of_two_that_take_over_at_once_one_leads(cluster, election, clock):
    gone, one, two = election("gone"), election("one"), election("two")
    for planner in (gone, one, two):
        await planner.turn()
    clock.advance(LEASE_S + 1)
    taken = cluster.get(KEY)
    taken["spec"]["holderIdentity"] = "two"
    cluster.meanwhile.append(("get", "leases", lambda: cluster.put(KEY, taken)))
    await one.turn()
    assert (one.left_s, holder(cluster)) == (0, "two")


async def test_of_two_that_begin_at_once_one_leads(cluster, election):
    one, two = election("one"), election("two")
    await two.turn()
    made = cluster.get(KEY)
    del cluster.objects[KEY]
    cluster.failing["create", "leases"] = 409
    await one.turn()
    assert one.left_s == 0
    cluster.failing.clear()
    cluster.put(KEY, made)
    await one.turn()
    assert one.left_s == 0


async def test_a_lease_that_is_deleted_is_made_again_by_its_holder(cluster, election, clock):
    one, two = election("one"), election("two")
    for planner in (one, two):
        await planner.turn()
    del cluster.objects[KEY]
    await two.turn()
    assert (two.left_s, KEY in cluster.objects) == (0, False)
    await one.turn()
    await two.turn()
    assert (one.left_s, two.left_s, holder(cluster)) == (LEAD_S, 0, "one")


async def test_a_lease_that_is_deleted_is_free_when_its_holder_has_stopped(
    cluster, election, clock
):
    one, two = election("one"), election("two")
    for planner in (one, two):
        await planner.turn()
    del cluster.objects[KEY]
    led = []
    while two.left_s == 0:  # "one" reaches nothing any more
        led.append(one.left_s)
        clock.advance(RENEW_S)
        await two.turn()
    assert one.left_s == 0
    assert 0 < len(led) * RENEW_S - LEASE_S <= 2 * RENEW_S
    await one.turn()
    assert (one.left_s, holder(cluster)) == (0, "two")


async def test_who_comes_back_does_not_lead_at_once_by_a_lease_that_is_gone(
    cluster, election, clock
):
    one, two = election("one"), election("two")
    await one.turn()
    clock.advance(LEASE_S + 1)
    await two.turn()
    clock.advance(LEASE_S + 1)
    await two.turn()
    assert two.left_s == LEAD_S
    del cluster.objects[KEY]
    await one.turn()
    assert (one.left_s, two.left_s) == (0, LEAD_S)


@pytest.mark.parametrize("status", [403, 503])
async def test_one_that_can_not_renew_stops_in_time(cluster, election, clock, caplog, status):
    one = election("one")
    await one.turn()
    cluster.failing["update", "leases"] = status
    for _ in range(4):
        clock.advance(RENEW_S)
        await one.turn()
    assert one.left_s == pytest.approx(LEAD_S - 4 * RENEW_S)
    clock.advance(RENEW_S)
    assert one.left_s == 0
    assert caplog.text.count(f"cannot write the lease {LEASE}: {status}") == 1
    cluster.failing.clear()
    await one.turn()
    assert one.left_s == LEAD_S


@pytest.mark.parametrize("verbs", [("get", "update"), ("create",), ("update",)])
async def test_nobody_leads_by_answers_that_are_none(cluster, election, clock, verbs):
    gone, one = election("gone"), election("one")
    if verbs == ("update",):
        await gone.start()
        await gone.close()
    for junk in ("null", "{}", "[]", "7", "", '{"spec": {"holderIdentity": ""}}'):
        cluster.answering = {(verb, "leases"): junk for verb in verbs}
        await one.turn()
        assert one.left_s == 0
    cluster.answering.clear()
    for _ in range(2):
        await one.turn()
        clock.advance(LEASE_S + 1)
    await one.turn()
    assert (one.left_s, holder(cluster)) == (LEAD_S, "one")


async def test_a_planner_that_ends_makes_room_at_once(cluster, election):
    one, two = election("one"), election("two")
    await one.start()
    await two.turn()
    await one.close()
    assert (one.left_s, holder(cluster)) == (0, "")
    await two.turn()
    assert (two.left_s, holder(cluster)) == (LEAD_S, "two")


async def test_a_planner_that_ends_leaves_anothers_lease_alone(cluster, election, clock):
    one, two = election("one"), election("two")
    await one.turn()
    await two.start()
    await two.close()
    assert holder(cluster) == "one"


async def test_a_lease_that_can_not_be_given_up_runs_out(cluster, election, caplog):
    one = election("one")
    await one.start()
    cluster.failing["update", "leases"] = 500
    await one.close()
    assert one.left_s == 0
    assert "runs out by itself" in caplog.text


async def test_it_goes_on_in_the_background(cluster, api):
    one = LeaseElection(api, NAMESPACE, LEASE, "one", renew_s=0.01)
    await one.start()
    del cluster.objects[KEY]
    async with asyncio.timeout(10):
        while KEY not in cluster.objects:
            await asyncio.sleep(0.01)
    await one.close()
    assert holder(cluster) == ""


async def test_it_needs_all_rules_of_the_lease(cluster, election):
    one = election("one")
    await one.turn()
    await one.turn()
    needed = {
        (rule.group, rule.resource, verb)
        for rule in RULES
        if rule.resource == "leases"
        for verb in rule.verbs
    }
    assert cluster.used == needed
