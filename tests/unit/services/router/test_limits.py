"""Tenants' limits as they are written, and their pace by a clock of the test's."""

import pytest

from services.router.limits import Limit, Pacer, parse_limits


def test_limits_as_they_are_written():
    table = parse_limits(" acme=10/s burst:20 streams:4 , slow=30/min,few=streams:2, *=2/s")
    assert table.of("acme") == Limit(10, 20, 4)
    assert table.of("slow") == Limit(0.5, 1, 0)
    assert table.of("few") == Limit(0, 1, 2)
    assert table.of("other") == table.of("") == Limit(2, 2, 0)


def test_who_is_not_named_has_no_limit():
    assert parse_limits("acme=1/s").of("other") is None
    assert parse_limits("").of("acme") is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("acme", "acme"),
        ("acme=", "acme"),
        ("=1/s", "=1/s"),
        ("a b=1/s", "a b"),
        ("acme=fast", "fast"),
        ("acme=1/h", "1/h"),
        ("acme=0/s", "0/s"),
        ("acme=-1/s", "-1/s"),
        ("acme=streams:0", "streams:0"),
        ("acme=streams:1.5", "streams:1.5"),
        ("acme=burst:5", "burst"),
        ("acme=1/s,acme=2/s", "acme"),
    ],
)
def test_what_is_none_is_named(text, told):
    with pytest.raises(ValueError, match=told):
        parse_limits(text)


def test_a_burst_then_the_pace_then_a_burst_again():
    pacer, limit = Pacer(), Limit(per_second=2, burst=3)
    assert [pacer.wait_s("a", limit, 100.0) for _ in range(3)] == [0, 0, 0]
    assert pacer.wait_s("a", limit, 100.0) == pytest.approx(0.5)
    assert pacer.wait_s("a", limit, 100.4) == pytest.approx(0.1)
    assert pacer.wait_s("a", limit, 100.5) == 0
    assert pacer.wait_s("a", limit, 100.5) == pytest.approx(0.5)
    assert [pacer.wait_s("a", limit, 110.0) for _ in range(4)] == [0, 0, 0, pytest.approx(0.5)]


def test_the_wait_that_is_told_is_enough_and_needed():
    pacer, limit, now_s = Pacer(), Limit(per_second=7, burst=2), 5.0
    for _ in range(50):
        while not (wait_s := pacer.wait_s("a", limit, now_s)):
            pass
        assert pacer.wait_s("a", limit, now_s + 0.98 * wait_s)
        now_s += wait_s
    assert now_s - 5.0 == pytest.approx(50 / 7, rel=0.01)


def test_tenants_do_not_wait_for_each_other():
    pacer, limit = Pacer(), Limit(per_second=1, burst=1)
    assert pacer.wait_s("a", limit, 0.0) == 0
    assert pacer.wait_s("a", limit, 0.0) > 0
    assert pacer.wait_s("b", limit, 0.0) == 0


def test_only_the_tenants_that_came_last_are_remembered():
    pacer, limit = Pacer(most=10), Limit(per_second=1, burst=1000)
    for number in range(100):
        assert pacer.wait_s(f"tenant-{number}", limit, 0.0) == 0
        assert pacer.wait_s("busy", Limit(per_second=1, burst=200), 0.0) == 0
    assert len(pacer) == 10
    for _ in range(100):
        assert pacer.wait_s("busy", Limit(per_second=1, burst=200), 0.0) == 0
    assert pacer.wait_s("busy", Limit(per_second=1, burst=200), 0.0) == pytest.approx(1.0)


def test_without_a_rate_none_waits():
    pacer = Pacer()
    assert all(not pacer.wait_s("a", Limit(streams=1), 0.0) for _ in range(100))
    assert len(pacer) == 0


@pytest.mark.parametrize(
    ("limit", "routers", "share"),
    [
        (Limit(10, 20, 4), 2, Limit(5, 10, 2)),
        (Limit(10, 20, 4), 8, Limit(1.25, 2, 1)),
        (Limit(10, 1, 0), 3, Limit(10 / 3, 1, 0)),
        (Limit(0, 1, 5), 1, Limit(0, 1, 5)),
        (Limit(10, 20, 4), 0, Limit(10, 20, 4)),
    ],
)
def test_a_routers_share(limit, routers, share):
    assert limit.share(routers) == share
