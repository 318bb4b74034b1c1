"""The chart as a whole: linted, packaged, with its notes, dashboards and test pod."""

import json
import re
import tomllib

import helm_python as helm
import pytest
import yaml

from tests.support.chart import CHART, MINIMAL, ROOT, merged, mib, release, value_sets

WANTED_SETS = {"minimal", "ha", "gpu", "tls", "existing-redis", "everything"}


@pytest.mark.parametrize("name", sorted(WANTED_SETS))
def test_lint_finds_nothing(name):
    report = helm.lint(CHART, value_sets()[name], strict=True)
    told = [each["error"] for each in report["messages"] if each["severity"] >= 2]
    assert (told, report["errors"]) == ([], [])


def test_there_are_values_for_each_kind_of_installation():
    assert value_sets().keys() >= WANTED_SETS


def test_a_model_of_billions_of_parameters_gets_room():
    """Its weights in two bytes each, the KV pools and a GiB for the process; workers compute on
    the CPU."""
    for name, values in value_sets().items():
        size = re.search(r"(\d+(?:\.\d+)?)b\b", values["model"]["source"])
        for role in ("prefill", "decode") if size else ():
            (worker,) = release(values).workload(role).pod["containers"]
            kv = next(a for a in worker["args"] if a.startswith("--kv-bytes=")).partition("=")[2]
            needed = float(size[1]) * 2e9 / 2**20 + int(kv) / 2**20 + 1024
            assert mib(worker["resources"]["limits"]["memory"]) > needed, name


def test_its_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]


def test_what_is_packaged_makes_the_same_objects_and_has_the_dashboards(tmp_path):
    archive = helm.package(CHART, destination=tmp_path)
    values = merged(MINIMAL, {"metrics": {"dashboards": {"enabled": True}}})
    values = merged(values, {"metrics": {"prometheusRule": {"enabled": True}}})
    with helm.Chart.load(archive) as chart:
        texts = chart.render(values, name="demo", namespace="prod")
    assert {path.removeprefix("baton/"): text for path, text in texts.items()} == release(
        values
    ).texts


def test_the_dashboards_and_alerts_are_the_projects():
    on = {"dashboards": {"enabled": True}, "prometheusRule": {"enabled": True}}
    made = release(merged(MINIMAL, {"metrics": on}))
    shown = {
        name: json.loads(text)
        for each in made.of("ConfigMap")
        if each["metadata"]["labels"].get("grafana_dashboard") == "1"
        for name, text in each["data"].items()
    }
    assert shown == {
        path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")
    }
    (rule,) = made.of("PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "dashboards" / "alerts.yaml").read_text())
    assert not release().of("PrometheusRule")


def test_a_monitor_fetches_all_processes_under_a_job_that_the_alerts_know():
    made = release(merged(MINIMAL, {"metrics": {"serviceMonitor": {"enabled": True}}}))
    (monitor,) = made.of("ServiceMonitor")
    (service,) = [
        each
        for each in made.of("Service")
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == "metrics"
    ]
    fetched = made.chosen(service["spec"]["selector"])
    assert {each.component for each in fetched} == {"gateway", "router", "prefill", "decode"}
    ports = {each["name"] for each in service["spec"]["ports"]}
    for workload in fetched:
        wanted = {name for name in workload.ports if name.endswith("metrics")}
        assert wanted
        assert wanted <= ports
    assert all(each["honorLabels"] for each in monitor["spec"]["endpoints"])
    label = monitor["spec"]["jobLabel"]
    assert "baton" in service["metadata"]["labels"][label]


@pytest.mark.parametrize(
    ("values", "told", "not_told"),
    [
        ({}, ["plain text", "helm test"], ["GPU"]),
        ({"decode": {"gpu": {"count": 1}}}, ["GPUs", "compute on the CPU"], []),
        ({"tls": {"enabled": True, "existingSecret": "fleet-tls"}}, [], ["plain text"]),
        (
            {
                "transfer": {"mode": "daemonSet"},
                "networkPolicy": {"nodeCidrs": ["10.0.0.0/16"]},
            },
            ["DaemonSet", "privileged"],
            [],
        ),
        ({"planner": {"enabled": True, "dryRun": True}}, ["planner"], []),
    ],
)
def test_the_notes_say_what_to_know(values, told, not_told):
    notes = release(merged(MINIMAL, values)).notes
    for text in told:
        assert text in notes
    for text in not_told:
        assert text not in notes
    assert max(len(line) for line in notes.splitlines()) <= 120


def test_it_is_tested_by_a_generation():
    made = release()
    (pod,) = made.of("Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["restartPolicy"] == "Never"
    off = release(merged(MINIMAL, {"tests": {"enabled": False}}))
    assert not off.of("Pod")
    assert len(off.workloads) == len(made.workloads) - 1
