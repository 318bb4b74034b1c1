"""Workers to bytes and back."""

import math
from dataclasses import replace

import pytest

from baton.naming import RequestId
from baton.policy.cost import StepCost
from baton.policy.fleet import Claim, Load, Role, Usage
from baton.v1 import worker_pb2
from services.common.fleet.record import Records, from_record, to_record
from tests.support.fleet import worker


@pytest.mark.parametrize("role", list(Role))
def test_a_worker_survives_the_round_trip(role):
    original = worker(
        "w",
        role,
        running=Usage(2, 30),
        taken=frozenset({Claim(RequestId("a"), 0), Claim(RequestId("a"), 1)}),
        draining=True,
        cost=StepCost(0.01, 1e-4, 1e-9, 2e-4, 2e-7, 0.25),
        load=Load(1.25, 3000, 0.05, 3, 0.015),
        lookahead_s=0.75,
    )
    original = replace(original, step_tokens=512, block_tokens=32, index_group=2)
    data = to_record(original).SerializeToString()
    assert from_record(worker_pb2.WorkerRecord.FromString(data)) == original


def test_a_worker_without_targets_has_none_and_takes_its_capacity():
    known = from_record(to_record(worker(load=Load(itl_target_s=None, sequence_limit=None))))
    assert known.load == Load()
    assert known.sequence_limit == worker().capacity.sequences


def test_a_target_of_nothing_is_a_target():
    assert from_record(to_record(worker(load=Load(itl_target_s=0.0)))).load.itl_target_s == 0.0


def test_what_is_pending_comes_from_the_reader():
    known = from_record(to_record(worker()), Usage(1, 5), 0.25)
    assert (known.pending, known.pending_prompt_s) == (Usage(1, 5), 0.25)


def test_an_unknown_role_is_refused():
    with pytest.raises(ValueError, match="role"):
        from_record(worker_pb2.WorkerRecord(worker_id="w"))


def nonsense(value):
    """A worker whose steps take such a time."""
    record = to_record(worker("later"))
    record.cost.prompt_pair_seconds = value
    return record.SerializeToString()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        worker_pb2.WorkerRecord(role=9).SerializeToString(),
        *map(nonsense, (math.nan, math.inf, -math.inf, -1e-9)),
    ],
)
def test_a_record_that_says_nothing_here_costs_no_other_worker_its_place(data, caplog):
    good = to_record(worker("a")).SerializeToString()
    records = Records()
    for _ in range(3):
        assert records.read({b"later": data, b"a": good}, {}) == (worker("a"),)
    assert len(caplog.records) == 1, "it is read five times a second"
    records.read({b"a": good}, {})
    records.read({b"later": data}, {})
    assert len(caplog.records) == 2
