"""Whole simulations of a small fleet, the queue by itself, and the trace."""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from baton.policy.admission import Allowance
from baton.policy.cost import StepCost
from baton.policy.fleet import IDLE, NOTHING, Role, Usage
from baton.policy.score import DEMOTION_S, Order
from bench.sim.balancers import random_of_two
from bench.sim.events import Events
from bench.sim.fleet import Fleet, FleetConfig
from bench.sim.life import Life
from bench.sim.queue import FleetQueue, Need, Ticket
from bench.sim.routers import RouterConfig, Routers
from bench.sim.run import BATON, POLICIES, Scenario, saturation, simulate
from bench.sim.worker import Spec
from bench.sim.workload import Line, arrivals, load
from bench.simulate import main
from tests.support.policy import worker

COST = StepCost(0.007, 3.3e-5, 1.3e-9, 3e-5, 5.5e-8, 0.05)
SPEC = Spec(COST, 32, 200_000, 2048, 0.15, 0.05)


def lines(count=300):
    draw = random.Random(5)
    return [
        Line(
            float(number),
            draw.choice([200, 2000, 12_000]),
            draw.randint(1, 200),
            (),
            None,
            None,
            False,
            "",
        )
        for number in range(count)
    ]


SCENARIO = Scenario(FleetConfig(2, 2, SPEC), RouterConfig(), lines())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_light_load_is_held_by_everyone(policy):
    result = simulate(SCENARIO, policy, 1.0)
    assert result.unfinished == 0
    assert result.refused == 0
    assert result.held > 0.9


def test_a_simulation_is_determined_by_its_seed():
    once, again = (simulate(SCENARIO, BATON, 8.0) for _ in range(2))
    assert once == again
    other = replace(SCENARIO, fleet=replace(SCENARIO.fleet, seed=1))
    assert simulate(other, BATON, 8.0) != once


@pytest.mark.parametrize(("prefill", "decode"), [(2, 2), (0, 4)])
def test_past_capacity_what_is_promised_is_held(prefill, decode):
    mode = "auto" if prefill else "never"
    base = replace(
        SCENARIO,
        fleet=replace(SCENARIO.fleet, prefill=prefill, decode=decode),
        routers=RouterConfig(disaggregation=mode),
    )
    capacity = saturation(base, BATON, 30.0)
    at, past = (simulate(base, BATON, share * capacity) for share in (1.0, 2.0))
    plain = simulate(base, "least-outstanding", 2 * capacity)
    assert past.goodput >= 0.9 * at.goodput
    assert past.goodput > plain.goodput
    assert past.refused > 0
    assert past.ttft_held >= 0.8 * (1 - past.refused)


def test_a_trace_is_brought_to_its_rate_and_copies_share_nothing(tmp_path):
    path = tmp_path / "trace.jsonl"
    record = {"input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}
    extra = {"class": "batch", "tenant": "a", "ttft_target": 3, "priority": -2, "predicted": 1}
    rows = [record | {"timestamp": 1000 * second} | extra for second in range(100)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    trace = load(path)
    assert trace[0] == Line(0.0, 1100, 5, (7, 8), 3.0, None, True, "a", -2)
    planned = arrivals(trace, 20.0, copies=4, count=None, seed=0)
    assert len(planned) == 400
    assert planned[-1].at_s == pytest.approx(400 / 20, rel=0.05)
    assert len({one.blocks(4) for one in planned}) == 4
    assert sum(one.at_s < 10 for one in planned) == pytest.approx(200, abs=4)
    path.write_text('{"timestamp": 1}')
    with pytest.raises(ValueError, match="line 1 of the trace"):
        load(path)


def test_of_requests_that_wait_those_of_a_higher_priority_come_first():
    trace = [replace(line, priority=10 * (at % 2)) for at, line in enumerate(lines())]
    fleet = Fleet(SCENARIO.fleet, Events())
    fleet.dispatcher = Routers(fleet, RouterConfig(refuse=False))
    fleet.start(arrivals(trace, 30.0, copies=1, count=None, seed=0), 1)
    fleet.events.run(300.0)
    assert not fleet.unfinished
    low, high = (
        sum(one.first_s - one.arrived_s for one in fleet.lives if one.priority == priority)
        for priority in (0, 10)
    )
    assert high < low / 2


def test_the_command_line_prints_a_row_for_each_policy_and_load(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    row = {"input_length": 500, "output_length": 5, "hash_ids": [1]}
    path.write_text("\n".join(json.dumps(row | {"timestamp": 100 * n}) for n in range(50)))
    main(
        [
            str(path),
            "--prefill",
            "1",
            "--decode",
            "1",
            "--loads",
            "50",
            "--capacity",
            "10",
            "--policies",
            "baton",
            "round-robin",
            "--json",
            "--compare-aggregated",
        ]
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["policy"], row["fleet"]) for row in rows] == [
        ("baton", "1+1"), ("round-robin", "1+1"), ("baton", "0+2"),
    ]  # fmt: skip
    assert all(row["held"] == 1 for row in rows)


def test_two_different_workers_are_drawn():
    workers = [SimpleNamespace(expected=count) for count in (0, 1)]
    for seed in range(20):
        pick = random_of_two(seed)
        assert pick(workers) is workers[0]
        assert pick(workers[1:]) is workers[1]


class Queue:
    """A queue with one prefill worker, and those who got a turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.given: list[int] = []
        self.queue = FleetQueue(lambda: self.now, lambda one: self.given.append(one.life.number))
        self.tell(IDLE.sequence_limit)

    def tell(self, limit, backlog_s=5.0):
        told = replace(IDLE, prompt_backlog_s=backlog_s, sequence_limit=limit)
        self.queue.heartbeat(worker("p", Role.PREFILL), NOTHING, told)

    def add(self, number, due_s, allowed=None, late_s=None, work_s=1.0):
        life = Life(number, 0.0, 100, 1, 1, (), 1.0, 1.0, False, "")
        ticket = Ticket(life, {Role.PREFILL: Need(100, work_s)})
        return self.queue.enqueue(ticket, Order(due_s, late_s=late_s), allowed)


def test_turns_come_by_deadline_while_there_is_prompt_room():
    queue = Queue()
    for number, due_s in ((0, 3.0), (1, 1.0), (2, 2.0)):
        queue.add(number, due_s)
    assert queue.given == []
    queue.tell(None, backlog_s=0.5)
    assert queue.given == [1]  # whose work is more than the room that is left


def test_a_late_ticket_is_put_behind_those_that_can_hold_their_targets():
    queue = Queue()
    queue.add(0, 1.0, late_s=1.0, work_s=0.1)
    queue.now = 1.5
    queue.add(1, 5.0, work_s=0.1)
    queue.add(2, DEMOTION_S + 1, work_s=0.1)
    queue.tell(None, backlog_s=0.0)
    assert queue.given == [1, 0, 2]


def test_what_is_ahead_is_all_with_a_lower_score():
    queue = Queue()
    assert queue.add(0, 1.0, Allowance(0.0, 0))
    assert not queue.add(1, 2.0, Allowance(0.9, 9))
    assert queue.add(2, 2.0, Allowance(1.0, 1))
    assert queue.add(3, 0.2, Allowance(0.0, 0))
    assert queue.queue.waiting == 3


def test_usage_of_a_worker_is_what_it_told_and_what_is_claimed():
    queue = Queue()
    (told,) = queue.queue.workers()
    assert told.pending == Usage(0, 0)


class Pair:
    """A queue with a prefill worker that has one place, and two decode workers: a large one
    that has prompts enough, and a small one that wants more."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.queue = FleetQueue(lambda: 0.0, lambda one: self.given.append(one.life.number))
        one_place = replace(IDLE, sequence_limit=1)
        self.queue.heartbeat(worker("p", Role.PREFILL), NOTHING, one_place)
        self.queue.heartbeat(worker("big"), NOTHING, replace(IDLE, prompt_backlog_s=5.0))
        self.queue.heartbeat(worker("small", capacity=Usage(8, 1_000)), NOTHING, IDLE)

    def add(self, number, **needs):
        life = Life(number, 0.0, 100, 1, 1, (), 1.0, 1.0, False, "")
        by_role = {Role[role.upper()]: Need(*need) for role, need in needs.items()}
        self.queue.enqueue(Ticket(life, by_role), Order(1.0))


def test_a_turn_takes_a_place_only_of_the_roles_that_it_needs():
    pair = Pair()
    pair.add(0, decode=(100, 0.0))
    pair.add(1, decode=(100, 0.0))
    pair.add(2, prefill=(100, 0.1), decode=(100, 0.0))
    pair.add(3, prefill=(100, 0.1))  # whose place the one before has
    assert pair.given == [0, 1, 2]


def test_a_prompt_has_no_room_where_only_a_worker_that_wants_none_is_large_enough():
    pair = Pair()
    pair.add(0, decode=(2_000, 0.0))
    pair.add(1, decode=(1_000, 0.1))
    pair.add(2, decode=(2_000, 0.1))
    assert pair.given == [0, 1]


def test_a_turn_that_is_given_back_frees_what_it_was_given():
    pair = Pair()
    life = Life(0, 0.0, 100, 1, 1, (), 1.0, 1.0, False, "")
    ticket = Ticket(life, {Role.PREFILL: Need(100, 0.1)})
    for _ in range(3):
        pair.queue.enqueue(ticket, Order(1.0))
    assert pair.given == [0, 0, 0]


def test_how_many_are_ahead_is_counted_to_the_score_and_their_work_to_half_a_second():
    queue = Queue()
    queue.tell(0)
    queue.add(0, 1.4)
    assert not queue.add(1, 1.1, Allowance(0.9, 0))
    assert queue.add(2, 1.1, Allowance(1.0, 0))
    assert not queue.add(3, 1.2, Allowance(2.0, 0))
    assert queue.queue.waiting == 2
