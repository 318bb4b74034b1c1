"""The test cluster itself: that it notices what is not clean, and starts again what ended."""

import pytest

from tests.support.idle import held_in

PROMPT = [5 + i % 100 for i in range(40)]


def test_a_running_request_is_not_clean(cluster):
    with cluster.client.generate(PROMPT, max_tokens=400, ignore_eos=True) as stream:
        next(stream)
        held = " ".join(held_in(cluster.fleet()))
        assert "router.running_requests: 1" in held
        assert "used_blocks" in held
        with pytest.raises(AssertionError, match="not idle"):
            cluster.wait_idle(0.0)
    cluster.wait_idle(1.0)
    assert held_in(cluster.fleet()) == []


@pytest.mark.parametrize("role", ["decode", "transfer"])
def test_what_was_killed_starts_again(cluster, role):
    expected = cluster.client.complete(PROMPT, max_tokens=8, temperature=0.0).token_ids
    before = cluster.pids(role)
    cluster.restart(role)
    assert cluster.pids(role) != before
    assert cluster.client.complete(PROMPT, max_tokens=8, temperature=0.0).token_ids == expected
    cluster.wait_idle(10.0)
