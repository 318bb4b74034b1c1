"""What the planner may do in Kubernetes: as data, so that a Role can be held against it.

Its calls are made in `kubernetes_scaler`, `deletion_cost`, `events` and `lease`; tests run them
against an API that refuses whatever is not listed here. Knows no client library.
"""

from dataclasses import dataclass
from enum import Enum


class Reach(Enum):
    """Which objects of a kind a rule is about."""

    DEPLOYMENTS = "deployments"
    """The Deployments of the prefill and decode workers, by their names."""
    LEASE = "lease"
    """The planner's Lease, by its name."""
    NAMESPACE = "namespace"
    """All of the namespace: RBAC can't tell pods by their labels, nor name what is created."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a Role."""

    group: str
    """API group; empty: the core group."""
    resource: str
    """In the plural, with its subresource where that is meant."""
    verbs: tuple[str, ...]
    reach: Reach


RULES = (
    Rule("apps", "deployments", ("get",), Reach.DEPLOYMENTS),
    Rule("apps", "deployments/scale", ("get", "patch"), Reach.DEPLOYMENTS),
    Rule("", "pods", ("list", "patch"), Reach.NAMESPACE),
    Rule("events.k8s.io", "events", ("create",), Reach.NAMESPACE),
    Rule("coordination.k8s.io", "leases", ("create",), Reach.NAMESPACE),
    Rule("coordination.k8s.io", "leases", ("get", "update"), Reach.LEASE),
)
"""All that it needs, and nothing else."""
