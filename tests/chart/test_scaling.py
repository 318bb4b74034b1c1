"""Who owns replicas, and what the planner may do."""

import pytest

from services.planner.permissions import RULES, Reach
from tests.support.chart import MINIMAL, merged, release

ANY = "any"
"""In place of an object's name."""


def test_replicas_have_one_owner(made):
    planner = made.values.get("planner", {})
    planned = planner.get("enabled", False) and not planner.get("dryRun", False)
    scaled = [each["spec"]["scaleTargetRef"]["name"] for each in made.of("HorizontalPodAutoscaler")]
    assert len(scaled) == len(set(scaled))
    for workload in made.services:
        if workload.kind != "Deployment":
            assert workload.name not in scaled
            continue
        owners = {
            "values": "replicas" in workload.object["spec"],
            "hpa": workload.name in scaled,
            "planner": planned and workload.component in ("prefill", "decode"),
        }
        assert sum(owners.values()) == 1, (workload.name, owners)


def test_autoscaling_is_for_those_without_engines(made):
    for each in made.of("HorizontalPodAutoscaler"):
        (workload,) = [w for w in made.services if w.name == each["spec"]["scaleTargetRef"]["name"]]
        assert workload.component in ("gateway", "router")
        assert each["spec"]["minReplicas"] <= each["spec"]["maxReplicas"]
        # Its percentages are of requests.
        assert all(c["resources"]["requests"]["cpu"] for c in workload.pod["containers"])


def test_the_values_own_the_pools_without_a_planner():
    made = release(merged(MINIMAL, {"prefill": {"replicas": 3}, "decode": {"replicas": 0}}))
    assert made.workload("prefill").object["spec"]["replicas"] == 3
    assert made.workload("decode").object["spec"]["replicas"] == 0
    assert release().workload("decode").object["spec"]["replicas"] == 1


def test_every_component_has_a_budget_for_evictions(made):
    budgets = [each["spec"]["selector"]["matchLabels"] for each in made.of("PodDisruptionBudget")]
    for workload in made.services:
        if workload.kind != "DaemonSet":
            takes = [each for each in budgets if workload in made.chosen(each)]
            assert len(takes) == 1, workload.name


def test_an_eviction_is_always_possible(made):
    """Such as for a node's upgrade, whatever the number of replicas."""
    for each in made.of("PodDisruptionBudget"):
        assert "minAvailable" not in each["spec"]
        assert each["spec"]["maxUnavailable"] not in (0, "0%")


def test_the_planner_may_scale_its_pools_and_nothing_else():
    made = release(merged(MINIMAL, {"planner": {"enabled": True}}))
    (role,) = made.of("Role")
    (binding,) = made.of("RoleBinding")
    assert not made.of("ClusterRole")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject["name"] == made.workload("planner").pod["serviceAccountName"]
    assert subject["namespace"] == made.namespace
    objects = {
        Reach.DEPLOYMENTS: {made.workload(role).name for role in ("prefill", "decode")},
        Reach.LEASE: {lease_of(made.workload("planner"))},
        Reach.NAMESPACE: {ANY},
    }
    needed = {
        (rule.group, rule.resource, verb, name)
        for rule in RULES
        for verb in rule.verbs
        for name in objects[rule.reach]
    }
    allowed = {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [ANY])
    }
    assert allowed == needed


def lease_of(planner):
    """The name of the Lease that the planner is told."""
    (container,) = planner.pod["containers"]
    (name,) = [a.partition("=")[2] for a in container["args"] if a.startswith("--lease=")]
    return name


@pytest.mark.parametrize("values", [{}, {"planner": {"enabled": True, "rbac": False}}])
def test_there_are_no_rights_where_none_are_wanted(values):
    made = release(merged(MINIMAL, values))
    assert not made.of("Role")
    assert not made.of("RoleBinding")
