"""Dozens of seeded schedules over one cluster; `make soak` runs hundreds."""

import dataclasses
from types import SimpleNamespace

import pytest

from baton import errors
from baton.events import Completed, CompletedChoice, FinishReason
from tests.faults.checks import Expected, problems
from tests.faults.clients import Outcome
from tests.faults.runner import Memory
from tests.faults.schedules import Kind, Phase, Schedule
from tests.faults.workload import RequestPlan

SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
async def test_schedule(shared_runner, seed):
    await shared_runner.run(Schedule.of(seed))


def test_a_seed_gives_the_same_schedule_and_another_seed_another():
    assert Schedule.of(7) == Schedule.of(7)
    assert len({str(Schedule.of(seed)) for seed in range(200)}) == 200


def test_few_hundred_schedules_have_every_fault_at_every_phase():
    steps = [step for seed in range(600) for step in Schedule.of(seed).steps]
    assert {step.kind for step in steps} == set(Kind)
    assert {step.phase for step in steps} == set(Phase)
    killed = {(step.target, step.phase) for step in steps if step.kind is Kind.KILL}
    for target in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
        assert {phase for name, phase in killed if name == target} == set(Phase), target
    targets = {step.target for step in steps}
    assert targets >= {"router-0", "router-1", "transfer", "valkey"}


def test_a_schedule_says_its_seed_and_its_steps():
    said = str(Schedule.of(3))
    assert "schedule 3" in said
    assert said.count("step:") == len(Schedule.of(3).steps)


PLAN = RequestPlan(prompt=(1, 2), max_tokens=3, seed=1)
RIGHT = Expected(((5, 6, 7),), ("abc",), None)


def outcome(tokens, text, reason="length", **more):
    choice = CompletedChoice(0, FinishReason(reason), None, len(tokens), "")
    done = Completed((choice,), usage=None, timings=None, request_id="r", seed=1)
    return dataclasses.replace(Outcome(PLAN, [tokens], [text], completed=done), **more)


def test_the_check_finds_what_is_wrong():
    def found(made, strict=True):
        return problems(made, RIGHT, strict=strict)

    assert found(outcome([5, 6, 7], "abc")) == []
    assert found(outcome([5, 6], "ab")), "cut, with a normal finish"
    assert found(outcome([5, 5, 6, 7], "aabc")), "a token twice"
    assert found(outcome([5, 7], "ac")), "one missing"
    assert found(outcome([5, 6, 7], "ab")), "text missing"
    assert found(outcome([5, 6, 7], "abc", reason="stop")), "ended for another reason"
    assert found(outcome([5, 6, 7], "abc", completed=None)), "no end"
    assert found(outcome([], "", silent=True))
    assert found(outcome([5], "a", cancelled=True, completed=None)) == []
    assert found(outcome([6], "b", cancelled=True, completed=None)), "wrong before the cancel"
    gone = errors.Unavailable("gone")
    assert found(outcome([5], "a", error=gone, completed=None), strict=False) == []
    assert found(outcome([5], "a", error=gone, completed=None), strict=True)
    bug = errors.InternalError("oops")
    assert found(outcome([5], "a", error=bug, completed=None), strict=False)


def test_growth_is_found_once_a_process_had_settled():
    fake = SimpleNamespace(supervisor=SimpleNamespace(specs=["one"]), pids=lambda name: [7])
    memory = Memory()

    def grown(size):
        fake.resident_bytes = lambda: {"one": size << 20}
        return memory.grown(fake)

    assert [grown(100) for _ in range(4)] == [[]] * 4
    assert grown(300) == ["one grew from 100 to 300 MiB"]
