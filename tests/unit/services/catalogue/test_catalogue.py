"""What is generated from the metrics' declarations, and the alert rules beside it."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from services.catalogue.__main__ import ROOT, generated
from services.catalogue.dashboards import DASHBOARDS
from services.catalogue.rooms import all_metrics
from services.common.telemetry.metric import Kind
from tests.support.promql import expression_of, names_in, referred, windows_of

ALERTS = ROOT / "dashboards" / "alerts.yaml"
OTHERS = {"up"}
"""Made by Prometheus itself."""


def names():
    """All series that the processes tell."""
    endings = {Kind.HISTOGRAM: ["_bucket", "_count", "_sum"]}
    return {m.name + ending for m in all_metrics() for ending in endings.get(m.kind, [""])}


def rules():
    return [rule for g in yaml.safe_load(ALERTS.read_text())["groups"] for rule in g["rules"]]


def panels():
    for dashboard in DASHBOARDS:
        for panel in dashboard.json()["panels"]:
            if panel["type"] != "row":
                yield pytest.param(panel, id=f"{dashboard.name}-{panel['id']}")


@pytest.mark.parametrize("path", list(generated()))
def test_what_is_committed_is_what_the_code_says(path):
    committed = (ROOT / path).read_text(encoding="utf-8")
    assert committed == generated()[path], "run `make docs`"


def test_nothing_else_is_there():
    files = {path.relative_to(ROOT) for path in (ROOT / "dashboards").iterdir()}
    assert files == {path for path in generated() if path.parts[0] == "dashboards"} | {
        ALERTS.relative_to(ROOT),
        Path("dashboards/README.md"),
    }


def test_names_are_told_once_and_say_whose_they_are():
    told = [metric.name for metric in all_metrics()]
    assert len(told) == len(set(told))
    services = "process|scrape|router|worker|transfer|gateway|planner"
    for name in told:
        assert re.fullmatch(rf"baton_({services})_[a-z0-9_]+", name), name


def test_every_metric_is_explained_in_a_sentence():
    for metric in all_metrics():
        assert metric.help.endswith("."), metric.name
        assert "|" not in metric.help, metric.name
        assert "\n" not in metric.help, metric.name


def test_no_label_has_a_value_for_each_request():
    for metric in all_metrics():
        assert not {"request", "request_id", "trace_id", "tenant", "user"} & set(metric.labels)


@pytest.mark.parametrize("panel", list(panels()))
def test_panels_say_what_they_show_and_ask_for_what_there_is(panel):
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["legendFormat"]
        expression = expression_of(target["expr"])
        assert names_in(expression) <= names()
        assert all("$job" in str(one) for one in referred(expression))


@pytest.mark.parametrize("dashboard", [pytest.param(one, id=one.name) for one in DASHBOARDS])
def test_panels_lie_beside_each_other(dashboard):
    placed = [panel["gridPos"] for panel in dashboard.json()["panels"]]
    for one, other in combinations(placed, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(place["x"] + place["w"] <= 24 for place in placed)
    ids = [panel["id"] for panel in dashboard.json()["panels"]]
    assert len(ids) == len(set(ids))


def test_dashboards_are_found_by_their_own_ids_and_link_each_other():
    made = [dashboard.json() for dashboard in DASHBOARDS]
    assert len({one["uid"] for one in made}) == len(made) == 7
    for one in made:
        assert "baton" in one["tags"]
        assert [variable["name"] for variable in one["templating"]["list"]] == ["datasource", "job"]
        json.dumps(one, allow_nan=False)


@pytest.mark.parametrize("rule", [pytest.param(one, id=one["alert"]) for one in rules()])
def test_alerts_ask_for_what_there_is_and_say_what_to_do(rule):
    expression = expression_of(rule["expr"])
    assert names_in(expression) <= names() | OTHERS
    assert set(rule["labels"]) == {"severity"}
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "runbook"}
    assert rule["annotations"]["runbook"].strip().endswith((".", "!"))
    assert re.fullmatch(r"Baton[A-Z]\w+", rule["alert"])


def test_rates_look_back_over_several_scrapes():
    """Of the usual 15 s to a minute."""
    for rule in rules():
        for window_s in windows_of(expression_of(rule["expr"])):
            assert window_s >= 300, rule["alert"]


def test_each_alert_is_named_once():
    alerts = [rule["alert"] for rule in rules()]
    assert len(alerts) == len(set(alerts))


def test_panels_that_compare_with_a_target_have_it():
    overview = json.loads((ROOT / Path("dashboards/overview.json")).read_text())
    asked = " ".join(t["expr"] for p in overview["panels"] for t in p.get("targets", []))
    assert "baton_router_ttft_target_seconds" in asked
    assert "baton_router_itl_target_seconds" in asked
