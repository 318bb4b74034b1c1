"""The memory of the last minutes: bounded, and its numbers are right."""

import numpy as np
import pytest

from services.gateway.page import history
from services.gateway.page.history import BUCKET_S, History, Sample, percentile
from services.gateway.page.rows import ended
from tests.support.page import report

NOW = 2000.0
BUCKETS = round(history.WINDOW_S / BUCKET_S)


def at(ended_s, **options):
    """A request that ended then."""
    taken = report(**options)
    return ended(report(arrival_s=ended_s - taken.timings.total.ToMicroseconds() / 1e6, **options))


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95, 0.99, 1.0])
def test_percentiles_are_numpys(count, share):
    values = np.random.default_rng(count).exponential(size=count)
    assert percentile(values.tolist(), share) == pytest.approx(np.percentile(values, share * 100))


def test_requests_are_bounded_and_numbered():
    memory = History()
    one = at(NOW)
    memory.add_requests([one] * (history.MAX_REQUESTS + 7))
    assert memory.last_number == history.MAX_REQUESTS + 7
    assert len(memory.newest(10**6)) == history.MAX_REQUESTS
    assert len(memory.newest(50)) == 50
    assert len(memory.newest(50, after=memory.last_number - 3)) == 3
    assert memory.newest(50, after=memory.last_number) == []


def test_newest_come_oldest_first():
    memory = History()
    memory.add_requests([at(NOW, request_id=name) for name in ("a", "b", "c")])
    assert [one.row["id"] for one in memory.newest(2)] == ["b", "c"]


def test_samples_are_bounded_by_number_and_by_age():
    memory = History()
    for index in range(history.MAX_SAMPLES * 3):
        memory.add_sample(Sample(NOW + index * 0.01, 0, 0))
    assert len(memory._samples) == history.MAX_SAMPLES
    memory.add_sample(Sample(NOW + 10_000, 0, 0))
    assert len(memory._samples) == 1


def test_the_summary_is_of_the_last_minute_and_counts_what_held():
    memory = History()
    memory.add_requests(
        [
            at(NOW - 61, request_id="old", prefill_s=9.0),
            at(NOW - 5, request_id="good", queue_s=0.1, prefill_s=0.2),
            at(NOW - 4, request_id="late", queue_s=0.3, prefill_s=0.4),
            at(NOW - 3, request_id="slow", queue_s=0.1, prefill_s=0.1, itl_s=0.06),
            at(NOW - 2, request_id="gone", outcome="CANCELLED", tokens=0),
            at(NOW - 1, request_id="no", outcome="REFUSED", tokens=0, parts=None),
        ]
    )
    found = memory.summary(NOW)
    assert found["ended"] == 5
    assert found["outcomes"] == {"completed": 3, "cancelled": 1, "refused": 1, "failed": 0}
    assert found["good"] == 1
    assert found["good_share"] == pytest.approx(1 / 4)  # nobody is to blame for a client that left
    assert found["ttft"]["count"] == 3
    assert found["ttft"]["p50"] == pytest.approx(0.3)
    assert found["ttft"]["target_s"] == 0.5
    assert found["ttft"]["held_share"] == pytest.approx(2 / 3)
    assert found["itl"]["held_share"] == pytest.approx(2 / 3)
    assert found["ttft_parts"]["queue"] == pytest.approx(0.5 / 3)
    assert sum(found["ttft_parts"].values()) == pytest.approx((0.3 + 0.7 + 0.2) / 3)


def test_an_idle_fleet_has_nothing_to_say():
    memory = History()
    found = memory.summary(NOW)
    assert (found["good_share"], found["ttft"]["p99"], found["itl"]["held_share"]) == (None,) * 3
    series = memory.series(NOW)
    assert series["ttft"]["p50"] == [None] * BUCKETS
    assert series["waiting"] == series["output_tokens"] == [None] * BUCKETS
    assert series["outcomes"]["completed"] == [0.0] * BUCKETS


def test_series_put_requests_where_they_ended():
    memory = History()
    latencies = [0.1, 0.2, 0.6]
    memory.add_requests(
        [at(NOW - 2 * BUCKET_S + 1, queue_s=0.0, prefill_s=took) for took in latencies]
        + [at(NOW + 1), at(NOW - history.WINDOW_S - 1)]  # a bucket that fills still; too old
    )
    series = memory.series(NOW)
    assert series["end_s"] == NOW
    assert len(series["ttft"]["p50"]) == BUCKETS
    assert series["ttft"]["p95"][-2] == pytest.approx(np.percentile(latencies, 95))
    assert series["outcomes"]["completed"][-2] == pytest.approx(3 / BUCKET_S)
    assert sum(series["outcomes"]["completed"]) == pytest.approx(3 / BUCKET_S)


def test_token_rates_are_of_workers_seen_twice_and_skip_what_nobody_watched():
    memory = History()
    key, restarted = ("decode-0", "1"), ("decode-0", "2")
    start = NOW - 3 * BUCKET_S
    memory.add_sample(Sample(start - 100, 4, 1, {key: (0, 0)}))
    memory.add_sample(Sample(start + 1, 2, 1, {key: (1000, 100)}))
    memory.add_sample(Sample(start + 2, 7, 1, {key: (1300, 150)}))
    memory.add_sample(Sample(start + 3, 1, 1, {restarted: (10, 5)}))
    series = memory.series(NOW)
    assert series["prompt_tokens"][-3:] == [pytest.approx(150), None, None]
    assert series["output_tokens"][-3] == pytest.approx(25)
    assert series["waiting"][-3] == 7
