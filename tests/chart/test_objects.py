"""What every object holds to: schemas, names, labels, and that what it refers to is there."""

import json
import re

import helm_python as helm
import jsonschema
import pytest

from tests.support import kubernetes_schemas
from tests.support.chart import CHART, MINIMAL, matches, references, release

NAME = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
RECOMMENDED = {"name", "instance", "component", "part-of", "version", "managed-by"}
SHORT = {
    "HorizontalPodAutoscaler": "hpa",
    "PodDisruptionBudget": "pdb",
}
LABEL = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")


@pytest.mark.parametrize("version", kubernetes_schemas.VERSIONS)
def test_kubernetes_takes_every_object(made, version):
    for each in made.objects:
        try:
            kubernetes_schemas.check(each, version)
        except jsonschema.ValidationError as error:
            where = "/".join(map(str, error.absolute_path))
            pytest.fail(f"{each['kind']} {each['metadata']['name']}, {where}: {error.message}")


def test_the_schemas_refuse_what_is_wrong():
    service = release().of("Service")[0]
    for wrong in ({"spec": {**service["spec"], "port": 1}}, {"spec": {"ports": "none"}}):
        with pytest.raises(jsonschema.ValidationError):
            kubernetes_schemas.check({**service, **wrong}, kubernetes_schemas.VERSIONS[0])


def test_the_oldest_version_is_the_charts():
    with helm.Chart.load(CHART) as chart:
        assert chart.metadata["kubeVersion"].startswith(f">={kubernetes_schemas.VERSIONS[0]}.0-0")


def test_a_template_makes_one_object_and_is_named_after_it(made):
    for path, objects in made.by_template.items():
        if path == "templates/dashboards-configmap.yaml":
            continue  # one for each dashboard
        assert len(objects) <= 1, path
        for each in objects:
            kind = SHORT.get(each["kind"], each["kind"].lower())
            assert path.endswith(f"-{kind}.yaml"), f"{path} makes a {each['kind']}"


def test_names_are_valid_and_unique(made):
    seen = set()
    for each in made.objects:
        metadata = each["metadata"]
        assert NAME.match(metadata["name"]), metadata["name"]
        assert len(metadata["name"]) <= 63
        assert metadata["namespace"] == made.namespace
        key = (each["kind"], metadata["name"])
        assert key not in seen
        seen.add(key)


def test_labels_say_what_an_object_belongs_to(made):
    for each in made.objects:
        labels = each["metadata"]["labels"]
        assert {f"app.kubernetes.io/{name}" for name in RECOMMENDED} <= labels.keys()
        assert all(LABEL.match(value) for value in labels.values()), labels
    for each in made.services:
        assert each.object["metadata"]["labels"].items() >= {
            (name, value)
            for name, value in each.labels.items()
            if name.startswith("app.kubernetes.io/")
        }


def test_a_selector_takes_its_own_pods_and_outlives_upgrades(made):
    for each in made.services:
        selector = each.object["spec"]["selector"]["matchLabels"]
        assert made.chosen(selector) == [each]
        assert set(selector) == {
            "app.kubernetes.io/name",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/component",
        }


def test_services_lead_to_ports_of_pods(made):
    for each in made.of("Service"):
        name = each["metadata"]["name"]
        backends = made.chosen(each["spec"]["selector"])
        assert backends, name
        if each["metadata"]["labels"]["app.kubernetes.io/component"] != "metrics":
            assert len(backends) == 1, name
        for port in each["spec"]["ports"]:
            assert any(port["targetPort"] in backend.ports for backend in backends), (name, port)


def test_policies_and_budgets_take_pods(made):
    for each in made.of("PodDisruptionBudget"):
        (workload,) = made.chosen(each["spec"]["selector"]["matchLabels"])
        assert workload.kind in ("Deployment", "StatefulSet")
    for each in made.of("NetworkPolicy"):
        selector = each["spec"]["podSelector"]
        assert any(matches(selector, workload.labels) for workload in made.workloads)


def test_routes_and_monitors_lead_to_services(made):
    for kind in ("HTTPRoute", "GRPCRoute"):
        for each in made.of(kind):
            for rule in each["spec"]["rules"]:
                for backend in rule["backendRefs"]:
                    service = made.named("Service", backend["name"])
                    assert backend["port"] in [port["port"] for port in service["spec"]["ports"]]
    for each in made.of("ServiceMonitor"):
        selector = each["spec"]["selector"]
        services = [s for s in made.of("Service") if matches(selector, s["metadata"]["labels"])]
        ports = {port["name"] for service in services for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in each["spec"]["endpoints"]} <= ports
    for each in made.of("Service"):
        if each["spec"].get("clusterIP") == "None" and "router" in each["metadata"]["name"]:
            # Routers that drain take no new work, so only ready ones are named.
            assert not each["spec"].get("publishNotReadyAddresses")


def test_what_is_referred_to_is_made_here_or_named_by_the_values(made):
    made_here = {(each["kind"], each["metadata"]["name"]): each for each in made.objects}
    for each in made.of("Certificate"):
        made_here["Secret", each["spec"]["secretName"]] = {}
    for workload in made.workloads:
        for kind, name, key in references(workload.pod):
            here = made_here.get((kind, name))
            if here is None:
                named = name in made.strings_of_values or any(
                    text.startswith(f"pvc://{name}/") for text in made.strings_of_values
                )
                assert named, f"{workload.name} refers to {kind} {name}"
            elif key and here:
                data = here.get("data", {}) | here.get("stringData", {})
                assert key in data, f"{workload.name} refers to {key} of {kind} {name}"


def test_volumes_are_mounted_where_they_are_declared(made):
    for workload in made.workloads:
        claims = workload.object["spec"].get("volumeClaimTemplates", [])
        volumes = {*workload.volumes, *(claim["metadata"]["name"] for claim in claims)}
        mounted = set()
        for container in workload.containers:
            mounts = container.get("volumeMounts", [])
            paths = [mount["mountPath"] for mount in mounts]
            assert len(paths) == len(set(paths)), container["name"]
            mounted |= {mount["name"] for mount in mounts}
        assert mounted == volumes, workload.name


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a" * 53, {}),
        ("demo", {"fullnameOverride": "f" * 63}),
        ("demo", {"nameOverride": "n" * 60}),
        ("baton", {}),
    ],
)
def test_any_allowed_name_makes_valid_objects(name, values):
    everything = {"planner": {"enabled": True}, "metrics": {"dashboards": {"enabled": True}}}
    made = release({**MINIMAL, **everything, **values}, name=name)
    for each in made.objects:
        assert len(each["metadata"]["name"]) <= 63
        kubernetes_schemas.check(each, kubernetes_schemas.VERSIONS[-1])
    for each in made.services:
        assert all(LABEL.match(value) for value in each.labels.values())
    test_what_is_referred_to_is_made_here_or_named_by_the_values(made)


@pytest.mark.parametrize("common", ["", "llama-for-production-in-the-west-of-europe-"])
def test_two_releases_in_a_namespace_share_nothing(common):
    first, second = (release(name=f"{common}{name}") for name in ("one", "two"))
    keys = [{(o["kind"], o["metadata"]["name"]) for o in made.objects} for made in (first, second)]
    assert not keys[0] & keys[1]
    for each in first.services:
        assert not second.chosen(each.object["spec"]["selector"]["matchLabels"])
    fleets = {
        re.findall(r"--fleet=\S+?\"", json.dumps(made.objects))[0] for made in (first, second)
    }
    assert len(fleets) == 2
