"""Which workers are asked, and in which order."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from baton.policy.fleet import NOTHING, Role, Usage
from baton.policy.placement import (
    MAX_CANDIDATES,
    common_limits,
    could_hold,
    load,
    pick_now,
    plans,
    rank,
)
from tests.support.fleet import demand, worker

BOTH = (Role.PREFILL, Role.DECODE)

usages = st.builds(Usage, st.integers(0, 6), st.integers(0, 1200))
workers = st.lists(
    st.builds(
        worker,
        st.sampled_from([f"w{number}" for number in range(12)]),
        st.sampled_from(Role),
        capacity=usages,
        running=usages,
        pending=usages,
        fingerprint=st.sampled_from(["x", "y"]),
        context_tokens=st.integers(1, 1200),
        draining=st.booleans(),
    ),
    unique_by=lambda each: each.worker_id,
    max_size=12,
)
demands = st.builds(demand, st.text(max_size=4), st.integers(1, 800), st.integers(1, 800))


@given(demands, workers)
def test_plans_hold_only_workers_that_could_and_agree_on_the_layout(wanted, fleet):
    for plan in plans(wanted, BOTH, fleet):
        assert [choice.role for choice in plan] == list(BOTH)
        assert len({w.layout_fingerprint for choice in plan for w in choice.workers}) == 1
        for choice in plan:
            assert choice.cost == wanted.cost(choice.role)
            assert 0 < len(choice.workers) <= MAX_CANDIDATES
            for chosen in choice.workers:
                assert chosen.role is choice.role
                assert not chosen.draining
                assert choice.cost.fits_in(chosen.capacity)
                total = wanted.prompt_tokens + wanted.max_tokens
                assert total <= chosen.model.context_tokens


@given(demands, workers)
def test_a_layout_is_left_out_only_when_a_role_lacks_a_worker(wanted, fleet):
    for layout in ("x", "y"):
        able = {w.role for w in fleet if w.layout_fingerprint == layout and could_hold(w, wanted)}
        found = any(
            plan[0].workers[0].layout_fingerprint == layout for plan in plans(wanted, BOTH, fleet)
        )
        assert found == (able == set(BOTH))


@given(demands, workers, st.randoms())
def test_ranks_do_not_depend_on_the_order_of_the_snapshot(wanted, fleet, random):
    shuffled = list(fleet)
    random.shuffle(shuffled)
    assert rank(wanted, Role.DECODE, fleet) == rank(wanted, Role.DECODE, shuffled)
    assert plans(wanted, BOTH, fleet) == plans(wanted, BOTH, shuffled)


@given(demands, workers)
def test_room_goes_before_load_goes_before_chance(wanted, fleet):
    cost = wanted.cost(Role.DECODE)
    keys = [(not cost.fits_in(w.free), load(w)) for w in rank(wanted, Role.DECODE, fleet)]
    assert keys == sorted(keys)


@given(demands, workers)
def test_pick_now_takes_the_first_with_room(wanted, fleet):
    for plan in plans(wanted, BOTH, fleet):
        with_room = [[w for w in c.workers if c.cost.fits_in(w.free)] for c in plan]
        picked = pick_now(plan)
        assert picked == (tuple(w[0] for w in with_room) if all(with_room) else None)


def test_equally_loaded_workers_share_the_requests():
    fleet = [worker(f"w{number}") for number in range(4)]
    firsts = Counter(
        rank(demand(f"r{number}"), Role.DECODE, fleet)[0].worker_id for number in range(400)
    )
    assert len(firsts) == 4
    assert min(firsts.values()) > 50


def test_the_scarcer_of_sequences_and_tokens_is_the_load():
    assert load(worker(capacity=Usage(4, 100))) == 0
    assert load(worker(capacity=Usage(4, 100), running=Usage(1, 75))) == 0.75
    assert load(worker(capacity=Usage(4, 100), running=Usage(1, 5), pending=Usage(2, 5))) == 0.75


def test_the_less_loaded_layout_comes_first():
    busy = [worker("a", capacity=Usage(2, 1000), running=Usage(1, 10), fingerprint="a")]
    idle = [worker("b", fingerprint="b")]
    first, second = plans(demand(), (Role.DECODE,), busy + idle)
    assert first[0].workers == tuple(idle)
    assert second[0].workers == tuple(busy)


def test_a_context_that_only_one_role_has_does_not_count():
    fleet = [
        worker("p", Role.PREFILL, context_tokens=500),
        worker("d1", context_tokens=100),
        worker("d2", context_tokens=300),
    ]
    limits = common_limits(fleet)
    assert limits is not None
    assert limits.context_tokens == 300
    assert plans(demand(prompt=200, most=100), BOTH, fleet)
    assert not plans(demand(prompt=201, most=100), BOTH, fleet)
    assert common_limits([]) is None


def test_a_prefill_worker_needs_room_for_the_prompt_and_one_token():
    small = worker("p", Role.PREFILL, capacity=Usage(1, 101))
    assert could_hold(small, demand(prompt=100, most=500))
    assert not could_hold(small, demand(prompt=101, most=1))
    assert demand(prompt=1).cost(Role.DECODE) - demand(prompt=1).cost(Role.DECODE) == NOTHING
