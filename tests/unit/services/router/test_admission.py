"""Who is let in, and what those are told who are not."""

from dataclasses import replace

import pytest

from baton.errors import Exhausted
from baton.policy.cost import StepCost
from baton.policy.fleet import Load, Role
from baton.policy.placement import SPLIT, plans
from baton.policy.roster import Roster
from services.router.admission import MOST_RETRY_S, Admission, Promises, idle_s
from tests.support.fleet import demand, worker

COST = StepCost(0.0, 0.01, 0.0, 0.005, 0.0, relative_error=0.1)


def planned(way, *workers, wanted=None):
    (plan,) = plans(wanted or demand(prompt=100), (way,), Roster(workers), lambda _: True)
    return plan


def test_what_may_be_waited_for_is_what_target_and_slack_leave():
    admission = Admission(target_s=2.0, slack_s=1.0, waited_s=0.5)
    assert admission.wait_s(1.0) == pytest.approx(1.5)
    assert admission.wait_s(10.0) == 0.0


def test_out_of_reach_has_no_time_after_which_to_try_again():
    admission = Admission(target_s=0.5, slack_s=1.0)
    admission.check_reach(1.5)
    with pytest.raises(Exhausted, match=r"ttft_target.*1\.6 s.*0\.5 s") as refused:
        admission.check_reach(1.6)
    assert (refused.value.reason, refused.value.retry_after) == ("TARGET_OUT_OF_REACH", None)


def test_a_missed_target_says_what_was_expected_and_when_to_try_again():
    busy = worker("p", Role.PREFILL, load=Load(prompt_backlog_s=6.0))
    outlook = Roster([busy, worker("d")]).outlook(Role.PREFILL, Role.DECODE, 0.0)
    refusal = Admission(2.0, 1.0).refusal(outlook, 0.5, 4.0, 3, Promises(lambda: 0.0))
    assert "10.5 s" in refusal.message
    assert "2 s" in refusal.message
    assert refusal.reason == "TARGET_MISSED"
    assert refusal.retry_after == pytest.approx(10.0 - 2.5)


def test_those_who_are_told_of_the_same_room_come_one_behind_the_other():
    now = 0.0
    promises = Promises(lambda: now)
    assert [promises.after_s(1.0, 0.5) for _ in range(3)] == [1.0, 1.5, 2.0]
    now = 1.2  # the first is back
    assert promises.after_s(0.3, 0.5) == pytest.approx(1.3)
    now = 10.0
    assert promises.after_s(1.0, 0.5) == 1.0


def test_nobody_waits_for_ever_for_others_sake():
    promises = Promises(lambda: 0.0)
    told = [promises.after_s(1.0, 5.0) for _ in range(100)]
    assert max(told) == MOST_RETRY_S
    assert promises.after_s(2 * MOST_RETRY_S, 5.0) == 2 * MOST_RETRY_S


def test_the_best_worker_that_measured_itself_says_how_long_a_prompt_takes():
    slow = worker("p", Role.PREFILL, cost=replace(COST, prompt_token_s=0.1))
    fast = worker("q", Role.PREFILL, cost=COST)
    plan = planned(SPLIT, slow, fast, worker("d"))
    assert idle_s([plan]) == pytest.approx(1.0)
    plan = planned(SPLIT, worker("p", Role.PREFILL), worker("d"))
    assert idle_s([plan]) == 0.0
    assert idle_s([]) == 0.0
