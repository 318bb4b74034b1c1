"""The file that says how many workers there are to be."""

import json

import pytest

from baton.local.problem import Problem
from baton.local.replicas import Replicas, Wanted, exclusive
from baton.policy.fleet import Role


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "replicas.json"
    replicas = Replicas(Wanted(1), Wanted(3, ("decode-1", "decode-0"), "because"))
    replicas.write(path)
    assert Replicas.read(path) == replicas
    assert list(tmp_path.iterdir()) == [path]


def test_a_person_need_not_write_all_of_it(tmp_path):
    path = tmp_path / "replicas.json"
    path.write_text('{"prefill": {"workers": 2}, "decode": {"workers": 1}}')
    assert Replicas.read(path) == Replicas(Wanted(2), Wanted(1))


def test_one_role_changes_and_the_other_stays():
    replicas = Replicas(Wanted(1), Wanted(2))
    assert replicas.changed(Role.PREFILL, Wanted(5)) == Replicas(Wanted(5), Wanted(2))
    assert replicas.changed(Role.DECODE, Wanted(5)) == Replicas(Wanted(1), Wanted(5))
    assert replicas.of(Role.PREFILL) == Wanted(1)
    assert replicas.of(Role.DECODE) == Wanted(2)


ONE = {"workers": 1}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], r"it is \[\], not an object with decode, prefill"),
        ({"prefill": ONE}, "decode is None, not an object"),
        ({"prefill": ONE, "decode": ONE, "router": ONE}, "it has router, which nobody knows"),
        ({"prefill": {"worker": 1}, "decode": ONE}, "prefill has worker, which nobody knows"),
        ({"prefill": ONE, "decode": {}}, "decode has workers None, not a number from 1 on"),
        ({"prefill": ONE, "decode": {"workers": 0}}, "decode has workers 0, not a number"),
        ({"prefill": ONE, "decode": {"workers": True}}, "decode has workers True, not a number"),
        ({"prefill": ONE, "decode": {"workers": 1.5}}, r"decode has workers 1\.5, not a number"),
        ({"prefill": {**ONE, "victims": "x"}, "decode": ONE}, "prefill has victims 'x', not a"),
        ({"prefill": {**ONE, "victims": [1]}, "decode": ONE}, r"prefill has victims \[1\], not a"),
        ({"prefill": {**ONE, "why": 1}, "decode": ONE}, "prefill has why 1, not a text"),
    ],
)
def test_what_cannot_be_understood_is_named(tmp_path, found, words):
    path = tmp_path / "replicas.json"
    path.write_text(json.dumps(found))
    with pytest.raises(Problem, match=f"replicas.json cannot be understood: {words}"):
        Replicas.read(path)


def test_a_file_that_is_not_there_or_no_json(tmp_path):
    path = tmp_path / "replicas.json"
    with pytest.raises(Problem, match=r"cannot read .*No such file"):
        Replicas.read(path)
    for content in (b"{", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(Problem, match=r"replicas.json is not JSON"):
            Replicas.read(path)


def test_only_one_changes_it_at_a_time(tmp_path):
    path = tmp_path / "replicas.json"
    with exclusive(path) as first, exclusive(path) as second:
        assert (first, second) == (True, False)
    with exclusive(path) as again:
        assert again
