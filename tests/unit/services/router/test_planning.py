"""Who is to do what."""

from types import SimpleNamespace

import pytest

from baton.policy.cost import StepCost
from baton.policy.fleet import Load, Role, Task, Usage
from baton.policy.roster import Roster
from services.router.means import Means
from services.router.planning import Kind, Planner
from tests.support.fleet import demand, worker

COST = StepCost(0.001, 0.001, 0.0, 0.001, 0.0, relative_error=0.1)
BUSY = Load(prompt_backlog_s=0.9)


def prefill(load=None, **more):
    return worker("p", Role.PREFILL, cost=COST, **({"load": load} if load else {}), **more)


def decode(**more):
    return worker("d", cost=COST, capacity=Usage(8, 4000), **more)


def options(*workers, mode="auto", kind=Kind.NEW, usable=lambda _: True, queued_s=0.0):
    view = SimpleNamespace(
        roster=Roster(workers),
        redis_available=True,
        snapshot=SimpleNamespace(queued_s=queued_s),
    )
    return Planner(view, Means(0.01), mode).options(demand(prompt=100), kind, usable)


def way(found):
    return [(choice.task, choice.role) for choice in found.plans[0]] if found.plans else []


SPLIT = [(Task.PREFILL, Role.PREFILL), (Task.DECODE, Role.DECODE)]
AT_DECODE = [(Task.WHOLE, Role.DECODE)]
AT_PREFILL = [(Task.WHOLE, Role.PREFILL)]


def test_the_mode_says_who_computes_prompts():
    assert way(options(prefill(), decode(), mode="always")) == SPLIT
    never = options(prefill(), decode(), mode="never")
    assert way(never) == AT_DECODE
    assert not never.local
    assert not never.degraded


def test_beside_a_batch_where_that_is_no_slower():
    idle = options(prefill(BUSY), decode())
    assert (way(idle), idle.local, idle.degraded) == (AT_DECODE, True, False)
    taken = decode(running=Usage(4, 100), load=Load(prompt_backlog_s=0.9))
    other = options(prefill(), taken)
    assert (way(other), other.local) == (SPLIT, False)


def test_the_queue_before_prefill_workers_counts():
    waiting = decode(running=Usage(4, 100), load=Load(prompt_backlog_s=0.4, itl_target_s=0.5))
    full = prefill(running=Usage(4, 400))
    assert way(options(full, waiting)) == SPLIT
    assert way(options(full, waiting, queued_s=2.0)) == AT_DECODE
    assert way(options(prefill(), waiting, queued_s=2.0)) == SPLIT, "it waits for others"


@pytest.mark.parametrize("mode", ["auto", "always"])
def test_a_role_stands_in_for_one_that_is_gone(mode):
    for workers, expected in (([decode()], AT_DECODE), ([prefill()], AT_PREFILL)):
        found = options(*workers, mode=mode)
        assert (way(found), found.local, found.degraded) == (expected, False, True)
    failing = options(prefill(), decode(), mode=mode, usable=lambda one: one.role is Role.DECODE)
    assert (way(failing), failing.degraded) == (AT_DECODE, True)


def test_a_fleet_without_prefill_workers_is_not_degraded_where_none_is_wanted():
    assert not options(decode(), mode="never").degraded
    found = options(prefill(), mode="never")
    assert (way(found), found.degraded) == (AT_PREFILL, True)


def test_a_stream_that_goes_on_passes_by_prefill_workers_while_decode_workers_live():
    assert way(options(prefill(), decode(), mode="always", kind=Kind.WHOLE)) == AT_DECODE
    assert way(options(prefill(), kind=Kind.WHOLE)) == AT_PREFILL
    assert way(options(prefill(), decode(), kind=Kind.GO_ON)) == [(Task.DECODE, Role.DECODE)]
    assert way(options(prefill(), kind=Kind.GO_ON)) == [(Task.DECODE, Role.PREFILL)]


def test_prefill_workers_do_not_stand_in_for_decode_workers_that_live():
    nobody = options(prefill(), decode(), usable=lambda one: one.role is Role.PREFILL)
    assert nobody.plans == ()
    draining = options(prefill(), decode(draining=True))
    assert way(draining) == AT_PREFILL


def test_nobody_at_all():
    found = options()
    assert (found.plans, found.local, found.degraded) == ((), False, False)
