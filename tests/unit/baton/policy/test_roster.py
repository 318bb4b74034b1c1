"""The fleet in the order in which it has room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.naming import WorkerId
from baton.policy.fleet import Role, Usage
from baton.policy.roster import BACKLOG_STEP_S, Roster, load, pressure
from tests.support.policy import NAMES, fleets, worker

notes = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.builds(Usage, st.integers(-3, 3), st.integers(-300, 300)),
        st.floats(-1, 1),
    ),
    max_size=20,
)
PLACES = [(layout, role) for layout in ("x", "y") for role in Role]


def everyone(_worker):
    return True


@given(fleets, notes)
def test_after_any_notes_order_and_sums_are_those_of_a_recount(fleet, told):
    roster = Roster(fleet, "seed")
    for name, usage, prompt_s in told:
        roster.note(WorkerId(name), usage, prompt_s)
    again = Roster(list(roster), "seed")
    for layout, role in PLACES:
        ordered = roster.first(layout, role, 99, everyone)
        assert ordered == again.first(layout, role, 99, everyone)
        pressures = [pressure(one) for one in ordered]
        assert pressures == sorted(pressures)
    for role in Role:
        mine, recounted = roster.outlook(role, role, 1.0), again.outlook(role, role, 1.0)
        assert mine.backlog_s == pytest.approx(recounted.backlog_s, abs=1e-6)
        assert mine.free_sequences == recounted.free_sequences
        assert (mine.sequences, mine.prompt_workers) == (
            recounted.sequences,
            recounted.prompt_workers,
        )


@given(fleets, notes)
def test_a_note_and_its_end_leave_the_usage_as_it_was(fleet, told):
    roster = Roster(fleet)
    for name, usage, prompt_s in told:
        roster.note(WorkerId(name), usage, abs(prompt_s))
    for name, usage, prompt_s in told:
        roster.note(WorkerId(name), Usage(0, 0) - usage, -abs(prompt_s))
    for before in fleet:
        after = roster.get(before.worker_id)
        assert after is not None
        assert after.pending == before.pending
        assert after.pending_prompt_s == pytest.approx(before.pending_prompt_s, abs=1e-6)


@given(fleets)
def test_first_gives_the_head_of_those_that_pass(fleet):
    roster = Roster(fleet)
    for layout, role in PLACES:
        every = roster.first(layout, role, 99, everyone)
        assert {one.worker_id for one in every} == {
            one.worker_id
            for one in fleet
            if (one.layout_fingerprint, one.role) == (layout, role) and not one.draining
        }
        idle = [one for one in every if one.running.sequences == 0]
        assert roster.first(layout, role, 2, lambda one: one.running.sequences == 0) == idle[:2]


def test_a_worker_that_drains_is_known_and_never_chosen():
    roster = Roster([worker("w", draining=True)])
    assert len(roster) == 1
    assert roster.get(WorkerId("w")) is not None
    assert not roster.has(Role.DECODE)
    assert roster.outlook(Role.DECODE, Role.DECODE, 1).prompt_workers == 0
    roster.note(WorkerId("w"), Usage(1, 1), 1.0)
    assert roster.first("x", Role.DECODE, 9, everyone) == []


@given(fleets, notes)
def test_backlogs_are_those_of_the_workers_within_a_step(fleet, told):
    roster = Roster(fleet)
    for name, usage, prompt_s in told:
        roster.note(WorkerId(name), usage, prompt_s)
    for role in Role:
        outlook = roster.outlook(role, role, 1.0)
        works = sorted(
            one.prompt_start_s for one in roster if one.role is role and not one.draining
        )
        told_works = [mean_s for mean_s, count in outlook.backlogs for _ in range(count)]
        assert told_works == pytest.approx(works, abs=BACKLOG_STEP_S + 1e-6)
        assert sum(told_works) == pytest.approx(outlook.backlog_s, abs=1e-6)


def test_a_note_of_a_stranger_changes_nothing():
    roster = Roster([worker("w")])
    roster.note(WorkerId("other"), Usage(1, 1), 1.0)
    assert roster.outlook(Role.DECODE, Role.DECODE, 1).backlog_s == 0


def test_layouts_with_more_workers_come_first():
    fleet = [worker("a", layout="x"), worker("b", layout="y"), worker("c", layout="y")]
    assert Roster(fleet).layouts() == ("y", "x")


def test_ties_fall_differently_for_different_routers():
    fleet = [worker(f"w{number}") for number in range(20)]
    orders = {
        tuple(one.worker_id for one in Roster(fleet, seed).first("x", Role.DECODE, 20, everyone))
        for seed in ("a", "b", "c")
    }
    assert len(orders) == 3


def test_prefill_workers_are_ordered_by_work_and_decode_workers_by_what_is_scarcest():
    few_but_long = worker("p", Role.PREFILL, running=Usage(1, 10), backlog_s=2)
    many_but_short = worker("q", Role.PREFILL, running=Usage(6, 60), backlog_s=1)
    assert pressure(many_but_short) < pressure(few_but_long)
    assert load(worker(capacity=Usage(4, 100))) == 0
    assert load(worker(capacity=Usage(4, 100), running=Usage(1, 75))) == 0.75
    assert load(worker(capacity=Usage(4, 100), running=Usage(1, 5), pending=Usage(2, 5))) == 0.75
    assert load(worker(capacity=Usage(8, 100), running=Usage(2, 5), sequence_limit=2)) == 1


@given(fleets, fleets)
def test_workers_put_in_one_by_one_are_as_a_new_roster(before, now):
    roster = Roster(before, "seed")
    for one in now:
        roster.put(one)
    names = {one.worker_id for one in now}
    again = Roster([one for one in before if one.worker_id not in names] + now, "seed")
    assert roster.layouts() == again.layouts()
    for layout, role in PLACES:
        assert roster.has(role) == again.has(role)
        assert roster.first(layout, role, 99, everyone) == again.first(layout, role, 99, everyone)
        assert roster.outlook(role, role, 1).free_sequences == (
            again.outlook(role, role, 1).free_sequences
        )
