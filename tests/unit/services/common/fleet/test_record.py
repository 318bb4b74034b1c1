"""Workers to bytes and back."""

import pytest

from baton.naming import RequestId
from baton.policy.fleet import Claim, Role, Usage
from baton.v1 import worker_pb2
from services.common.fleet.record import from_record, to_record
from tests.support.fleet import worker


@pytest.mark.parametrize("role", list(Role))
def test_a_worker_survives_the_round_trip(role):
    original = worker(
        "w",
        role,
        running=Usage(2, 30),
        taken=frozenset({Claim(RequestId("a"), 0), Claim(RequestId("a"), 1)}),
        draining=True,
    )
    data = to_record(original).SerializeToString()
    assert from_record(worker_pb2.WorkerRecord.FromString(data)) == original


def test_pending_comes_from_the_reader():
    assert from_record(to_record(worker()), Usage(1, 5)).pending == Usage(1, 5)


def test_an_unknown_role_is_refused():
    with pytest.raises(ValueError, match="role"):
        from_record(worker_pb2.WorkerRecord(worker_id="w"))
