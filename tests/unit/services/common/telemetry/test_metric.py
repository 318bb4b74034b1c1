"""Declarations of metrics."""

import pytest

from services.common.telemetry.metric import Kind, Metric, counter, gauge, histogram


def test_counters_alone_end_in_total():
    with pytest.raises(ValueError, match="counters, and they alone"):
        counter("baton_x", "Counts.")
    with pytest.raises(ValueError, match="counters, and they alone"):
        Metric("baton_x_total", Kind.GAUGE, "Is.")


def test_a_reading_has_the_labels_of_its_metric():
    metric = gauge("baton_x", "Is.", "role", "state")
    assert metric.at(1, "prefill", "ready").labels == ("prefill", "ready")
    with pytest.raises(ValueError, match="labels"):
        metric.at(1, "prefill")


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        (histogram("baton_x_seconds", "."), "seconds"),
        (counter("baton_x_bytes_total", "."), "bytes"),
        (gauge("baton_x_error_ratio", "."), "ratio"),
        (gauge("baton_peak_bytes_per_second", "."), "bytes/second"),
        (gauge("baton_running_requests", "."), ""),
    ],
)
def test_the_unit_is_the_name_s_last_word(metric, unit):
    assert metric.unit == unit
