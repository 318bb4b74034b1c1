"""Which workers are asked, and in which order."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.naming import WorkerId
from baton.policy.cost import StepCost
from baton.policy.fleet import Role, Task, Usage
from baton.policy.placement import (
    AT_DECODE,
    AT_PREFILL,
    GO_ON,
    MAX_CANDIDATES,
    SPLIT,
    common_limits,
    could_hold,
    has_room,
    pick_now,
    plans,
    predicted_itl_s,
    prefers_local,
    prompt_time_s,
)
from baton.policy.roster import Roster
from tests.support.policy import demand, demands, fleets, worker

ways = st.sampled_from([SPLIT, AT_DECODE, AT_PREFILL, GO_ON])


def anyone(_worker):
    return True


def best(wanted, way, fleet, near=None):
    """The worker that would do the last task of the best plan."""
    return plans(wanted, (way,), Roster(fleet), anyone, near=near)[0][-1].best.worker


@given(demands, ways, fleets)
def test_plans_hold_only_workers_that_could_and_agree_on_the_layout(wanted, way, fleet):
    for plan in plans(wanted, (way,), Roster(fleet), anyone):
        assert tuple((choice.task, choice.role) for choice in plan) == way
        assert len({one.worker.layout_fingerprint for c in plan for one in c.candidates}) == 1
        for choice in plan:
            assert choice.cost == wanted.cost(choice.task)
            assert 0 < len(choice.candidates) <= MAX_CANDIDATES
            for one in choice.candidates:
                assert one.worker.role is choice.role
                assert not one.worker.draining
                assert choice.cost.fits_in(one.worker.capacity)
                assert wanted.life_tokens <= one.worker.model.context_tokens
                assert 1 <= one.limit <= max(1, one.worker.capacity.sequences)
                assert one.prompt_s == wanted.prompt_s(choice.task, one.worker)


@given(demands, ways, fleets)
def test_a_layout_is_left_out_only_when_a_role_lacks_a_worker(wanted, way, fleet):
    found = {
        plan[0].best.worker.layout_fingerprint
        for plan in plans(wanted, (way,), Roster(fleet), anyone)
    }
    for layout in ("x", "y"):
        able = all(
            any(
                (one.layout_fingerprint, one.role) == (layout, role)
                and could_hold(one, wanted, task)
                for one in fleet
            )
            for task, role in way
        )
        assert (layout in found) == able


@given(demands, fleets)
def test_the_first_way_that_has_workers_is_taken(wanted, fleet):
    roster = Roster(fleet)
    split, whole = (plans(wanted, (way,), roster, anyone) for way in (SPLIT, AT_DECODE))
    assert plans(wanted, (SPLIT, AT_DECODE), roster, anyone) == (split or whole)


@given(demands, ways, fleets)
def test_a_layout_that_is_asked_for_is_the_only_one_unless_nobody_has_it(wanted, way, fleet):
    roster = Roster(fleet)
    every = plans(wanted, (way,), roster, anyone)
    asked = plans(wanted, (way,), roster, anyone, layout="x")
    matching = tuple(plan for plan in every if plan[0].best.worker.layout_fingerprint == "x")
    assert asked == (matching or every)


@given(demands, ways, fleets, st.randoms())
def test_plans_do_not_depend_on_the_order_of_the_snapshot(wanted, way, fleet, random):
    shuffled = list(fleet)
    random.shuffle(shuffled)
    mine, other = (plans(wanted, (way,), Roster(each), anyone) for each in (fleet, shuffled))
    assert mine == other


@given(demands, ways, fleets)
def test_room_goes_before_everything_else(wanted, way, fleet):
    for plan in plans(wanted, (way,), Roster(fleet), anyone):
        for choice in plan:
            full = [not has_room(choice, one) for one in choice.candidates]
            assert full == sorted(full)


@given(demands, ways, fleets)
def test_pick_now_takes_the_first_with_room(wanted, way, fleet):
    for plan in plans(wanted, (way,), Roster(fleet), anyone):
        with_room = [[one for one in c.candidates if has_room(c, one)] for c in plan]
        picked = pick_now(plan)
        assert picked == (tuple(each[0] for each in with_room) if all(with_room) else None)
        for choice, one in zip(plan, picked or (), strict=False):
            assert choice.cost.fits_in(one.worker.free)
            assert one.worker.sequences < one.limit


@given(demands, ways, fleets)
def test_one_that_is_not_usable_is_not_chosen(wanted, way, fleet):
    bad = WorkerId("w3")
    for plan in plans(wanted, (way,), Roster(fleet), lambda one: one.worker_id != bad, near=bad):
        assert all(one.worker.worker_id != bad for c in plan for one in c.candidates)


def test_equally_taken_workers_share_the_requests():
    fleet = [worker(f"w{number}") for number in range(4)]
    firsts = Counter(
        best(demand(f"r{number}"), AT_DECODE, fleet).worker_id for number in range(400)
    )
    assert len(firsts) == 4
    assert min(firsts.values()) > 50


def test_noted_claims_spread_over_a_large_fleet():
    roster = Roster(worker(f"w{number}", Role.PREFILL) for number in range(100))
    chosen = Counter()
    for number in range(200):
        wanted = demand(f"r{number}")
        way = ((Task.PREFILL, Role.PREFILL),)
        one = plans(wanted, (way,), roster, anyone)[0][0].best
        roster.note(one.worker.worker_id, wanted.cost(Task.PREFILL), one.prompt_s)
        chosen[one.worker.worker_id] += 1
    assert max(chosen.values()) == min(chosen.values()) == 2


def test_a_cached_prompt_attracts_until_the_wait_costs_more():
    wanted = demand(prompt=2000, cached={"near": 1900})
    far = worker("far", Role.PREFILL)
    saved_s = wanted.prompt_s(Task.PREFILL, far) - wanted.prompt_s(
        Task.PREFILL, worker("near", Role.PREFILL)
    )
    for backlog_s, expected in ((0.0, "near"), (0.9 * saved_s, "near"), (1.1 * saved_s, "far")):
        near = worker("near", Role.PREFILL, backlog_s=backlog_s)
        way = ((Task.PREFILL, Role.PREFILL),)
        assert best(wanted, way, [far, near]).worker_id == expected


def test_the_worker_that_has_the_prompt_is_found_in_a_large_fleet():
    fleet = [worker(f"w{number}", Role.PREFILL) for number in range(200)]
    fleet.append(worker("near", Role.PREFILL, running=Usage(1, 100), backlog_s=0.01))
    wanted = demand(prompt=2000, cached={"near": 1900})
    assert best(wanted, ((Task.PREFILL, Role.PREFILL),), fleet).worker_id == "near"


def test_near_goes_first_where_it_has_room():
    idle, busy = worker("idle"), worker("busy", running=Usage(6, 10))
    assert best(demand(), GO_ON, [idle, busy]).worker_id == "idle"
    assert best(demand(), GO_ON, [idle, busy], near=WorkerId("busy")).worker_id == "busy"
    full = worker("busy", running=Usage(8, 10))
    assert best(demand(), GO_ON, [idle, full], near=WorkerId("busy")).worker_id == "idle"


def test_a_decode_worker_on_the_same_host_is_preferred_among_equals():
    fleet = [worker("p", Role.PREFILL, host="a"), worker("d1", host="b"), worker("d2", host="a")]
    for number in range(20):
        assert best(demand(f"r{number}"), SPLIT, fleet).worker_id == "d2"


def test_the_batch_with_shorter_steps_is_preferred():
    small = worker("small", running=Usage(1, 100), decoding_tokens=100)
    large = worker("large", running=Usage(5, 500), decoding_tokens=500)
    assert best(demand(), GO_ON, [large, small]).worker_id == "small"
    assert predicted_itl_s(large, demand()) > predicted_itl_s(small, demand())


def test_a_batch_that_would_miss_the_target_has_no_room():
    """Its steps take 10 ms and 1.1 ms for each sequence: four fit in 15 ms."""
    batch = worker(running=Usage(4, 400), decoding_tokens=400)
    (choice,) = plans(demand(itl_target_s=0.015), (GO_ON,), Roster([batch]), anyone)[0]
    assert choice.best.limit == 4
    assert not has_room(choice, choice.best)
    assert pick_now((choice,)) is None
    (loose,) = plans(demand(itl_target_s=0.5), (GO_ON,), Roster([batch]), anyone)[0]
    assert has_room(loose, loose.best)


def test_a_worker_with_enough_prompt_work_has_room_only_for_what_needs_none():
    busy = worker(backlog_s=1.0, lookahead_s=1.0)
    (whole,) = plans(demand(), (AT_DECODE,), Roster([busy]), anyone)[0]
    assert not has_room(whole, whole.best)
    (go_on,) = plans(demand(), (GO_ON,), Roster([busy]), anyone)[0]
    assert has_room(go_on, go_on.best)


def test_the_less_taken_layout_comes_first():
    busy = worker("a", capacity=Usage(2, 1000), running=Usage(1, 10), layout="a")
    idle = worker("b", layout="b")
    first, second = plans(demand(), (AT_DECODE,), Roster([busy, idle]), anyone)
    assert first[0].best.worker == idle
    assert second[0].best.worker == busy


def both(wanted, prefill, decode, handoff_s=0.01):
    roster = Roster([prefill, decode])
    split, local = (plans(wanted, (way,), roster, anyone)[0] for way in (SPLIT, AT_DECODE))
    return prefers_local(wanted, split, local, handoff_s)


@pytest.mark.parametrize(
    ("prompt", "running", "backlog_s", "target_s", "expected"),
    [
        (50, 2, 0.0, 0.5, True),  # short: the handoff would take longer
        (2000, 2, 0.0, 0.5, False),  # long: it shares its steps with the batch
        (2000, 2, 5.0, 0.5, True),  # long, but there is a queue at the prefill worker
        (2000, 2, 5.0, 0.03, False),  # as before, but a chunk would hold up the batch
        (2000, 0, 0.0, 0.5, False),  # nobody to hold up, but somebody may come
        (50, 0, 0.0, None, True),  # over before anybody comes
        (50, 8, 0.0, 0.5, False),  # no room
    ],
)
def test_prompts_are_computed_beside_a_batch_where_that_is_no_slower_and_disturbs_nobody(
    prompt, running, backlog_s, target_s, expected
):
    decode = worker(
        "d",
        running=Usage(running, running * 100),
        decoding_tokens=running * 100,
        itl_target_s=target_s,
    )
    prefill = worker("p", Role.PREFILL, backlog_s=backlog_s)
    assert both(demand(prompt=prompt), prefill, decode) is expected


def test_without_any_target_a_chunk_may_double_the_step():
    decode = worker("d", running=Usage(2, 200), decoding_tokens=200)
    assert both(demand(prompt=50), worker("p", Role.PREFILL), decode)
    busy = worker("p", Role.PREFILL, backlog_s=9)
    assert not both(demand(prompt=5000), busy, decode)


def test_a_cached_prompt_is_computed_where_the_batch_is():
    decode = worker("d", running=Usage(2, 200), decoding_tokens=200, itl_target_s=0.03)
    wanted = demand(prompt=2000, cached={"d": 1950})
    assert both(wanted, worker("p", Role.PREFILL), decode)


def test_a_context_that_only_one_role_has_does_not_count():
    fleet = [
        worker("p", Role.PREFILL, context_tokens=500),
        worker("d1", context_tokens=100),
        worker("d2", context_tokens=300),
    ]
    limits = common_limits(fleet)
    assert limits is not None
    assert limits.context_tokens == 300
    roster = Roster(fleet)
    assert plans(demand(prompt=200, most=100), (SPLIT,), roster, anyone)
    assert not plans(demand(prompt=201, most=100), (SPLIT,), roster, anyone)
    assert common_limits([]) is None


def test_a_prefill_worker_needs_room_for_the_prompt_and_one_token():
    small = worker("p", Role.PREFILL, capacity=Usage(1, 101))
    assert could_hold(small, demand(prompt=100, most=500), Task.PREFILL)
    assert not could_hold(small, demand(prompt=101, most=1), Task.PREFILL)
    assert not could_hold(small, demand(prompt=100, most=500), Task.WHOLE)


def test_a_prompt_may_wait_for_its_cache_as_long_as_that_saves_work():
    """2,000 tokens in chunks of 256 take 0.3 s; what the worker wants ahead is 0.1 s."""
    wanted = demand(prompt=2000, cached={"near": 1900})
    far = worker("far", Role.PREFILL, lookahead_s=0.1)
    saved_s = wanted.prompt_s(Task.PREFILL, far) - wanted.prompt_s(
        Task.PREFILL, worker("near", Role.PREFILL)
    )
    way = ((Task.PREFILL, Role.PREFILL),)
    for backlog_s, expected in ((0.15, True), (0.1 + 1.1 * saved_s, False)):
        near = worker("near", Role.PREFILL, backlog_s=backlog_s, lookahead_s=0.1)
        (choice,) = plans(wanted, (way,), Roster([near]), anyone)[0]
        assert choice.best.saved_s == pytest.approx(saved_s)
        assert has_room(choice, choice.best) is expected
    near = worker("near", Role.PREFILL, backlog_s=0.15, lookahead_s=0.1)
    assert best(wanted, way, [far, near]).worker_id == "near"
    cold = plans(demand(prompt=2000), (way,), Roster([near]), anyone)[0][0].best
    assert cold.saved_s == 0


def test_cached_workers_of_the_other_role_do_not_push_out_those_that_are_asked():
    fleet = [worker(f"d{number}") for number in range(20)]
    fleet += [worker(f"p{number}", Role.PREFILL) for number in range(20)]
    near = worker("near", Role.PREFILL, running=Usage(1, 10), backlog_s=0.01)
    wanted = demand(prompt=2000, cached={"near": 1900} | {f"d{n}": 1950 for n in range(20)})
    way = ((Task.PREFILL, Role.PREFILL),)
    assert best(wanted, way, [*fleet, near]).worker_id == "near"


def test_a_prompt_beside_a_batch_takes_longer_by_the_batchs_steps():
    cost = StepCost(0.0, 0.01, 0.0, 0.005, 0.0)
    wanted = demand(prompt=1000, most=10)

    def time_s(**kwargs):
        one = worker("d", capacity=Usage(10, 5000), cost=cost, **kwargs)
        (plan,) = plans(wanted, (AT_DECODE,), Roster([one]), anyone)
        return prompt_time_s(Task.WHOLE, plan[0].best, wanted)

    assert time_s() == pytest.approx(10.0)
    steps = 4  # of 250 prompt tokens beside 6 sequences
    assert time_s(running=Usage(6, 600)) == pytest.approx(10.0 + steps * 6 * 0.005)
