"""Network policies: exactly the edges that processes dial, from both ends."""

import ipaddress
from functools import cache

import pytest

from tests.support.chart import MINIMAL, matches, merged, release

ROUTER, WORKER, TRANSFER, REDIS, GATEWAY = 7600, 7601, 7610, 6379, 8000
METRICS = {9100, 9101}
OWN_NAMESPACE = {"kubernetes.io/metadata.name": "prod"}
STRANGER = ({"app": "stranger"}, {"kubernetes.io/metadata.name": "elsewhere"})


def dialled(made):
    """(who, whom, port) of all calls between pods, as the processes make them."""
    workers = ("prefill", "decode")
    here = {each.component for each in made.workloads}
    transfers = ("transfer",) if "transfer" in here else workers
    edges = {
        ("gateway", "router", ROUTER),
        ("test", "gateway", GATEWAY),
        ("test", "router", ROUTER),
    }
    edges |= {("router", worker, WORKER) for worker in workers}
    # Routers renew leases and follow what is cached; workers publish and fetch; peers read.
    for whom in transfers:
        edges |= {(who, whom, TRANSFER) for who in ("router", *workers, *transfers)}
    edges |= {(who, "redis", REDIS) for who in ("router", "planner", *workers)}
    return {edge for edge in edges if {edge[0], edge[1]} <= here}


def allowed(made, side, labels, other, port):
    """Whether the policies of the pod with `labels` let `port` of or for `other` through: (labels,
    labels of the namespace), or an address."""
    policies = _policies(made, tuple(sorted(labels.items())))
    assert all(set(each["policyTypes"]) == {"Ingress", "Egress"} for each in policies)
    assert policies, f"no policy for {labels}"
    rules = [rule for each in policies for rule in each.get(side, [])]
    peers = "from" if side == "ingress" else "to"
    return any(_port_fits(rule, port) and _peer_fits(rule.get(peers), other) for rule in rules)


@cache
def _policies(made, labels):
    every = [each["spec"] for each in made.of("NetworkPolicy")]
    return [each for each in every if matches(each["podSelector"], dict(labels))]


def _port_fits(rule, port):
    ports = rule.get("ports")
    return ports is None or any(p["port"] == port and p["protocol"] == "TCP" for p in ports)


def _peer_fits(peers, other):
    if peers is None:
        return True
    assert peers, "an empty list of peers means anyone"
    if isinstance(other, str):
        blocks = [each["ipBlock"] for each in peers if "ipBlock" in each]
        address = ipaddress.ip_address(other)
        return any(address in ipaddress.ip_network(each["cidr"]) for each in blocks)
    labels, namespace = other
    return any(
        "ipBlock" not in each
        and matches(each.get("podSelector", {}), labels)
        and matches(each.get("namespaceSelector", {"matchLabels": OWN_NAMESPACE}), namespace)
        for each in peers
    )


def test_pods_reach_whom_their_processes_dial_and_nobody_else(made):
    if not made.of("NetworkPolicy"):
        pytest.skip("these values have no policies")
    edges = dialled(made)
    free = made.values.get("transfer", {}).get("peerTransport", "grpc") != "grpc"
    for whom in made.workloads:
        ports = {*whom.ports.values(), 22}
        for who in made.workloads:
            for port in ports:
                out = allowed(made, "egress", who.labels, (whom.labels, OWN_NAMESPACE), port)
                into = allowed(made, "ingress", whom.labels, (who.labels, OWN_NAMESPACE), port)
                wanted = (who.component, whom.component, port) in edges
                # NIXL chooses ports of its own between those who have KV.
                peers = dialled_as_peers(edges)
                wanted |= free and (who.component, whom.component) in peers
                told = (who.component, whom.component, port)
                assert (out and into) == wanted, told
                assert out == wanted, f"{told}: only one end"
                open_to_all = port in METRICS or whom.component in ("gateway", "router")
                assert into == wanted or (into and open_to_all), f"{told}: only one end"


def dialled_as_peers(edges):
    """Pairs that carry KV: transfer services and those of the other hosts."""
    hosts = {whom for _, whom, port in edges if port == TRANSFER}
    return {(who, whom) for who in hosts for whom in hosts}


def test_strangers_reach_the_gateway_and_metrics_alone():
    made = release(merged(MINIMAL, {"planner": {"enabled": True}}))
    for whom in made.workloads:
        for port in whom.ports.values():
            wanted = port in METRICS or port == GATEWAY
            assert allowed(made, "ingress", whom.labels, STRANGER, port) == wanted
            assert not allowed(made, "egress", whom.labels, STRANGER, port)


def test_clients_may_be_named():
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "clients"}}}
    names = ("gatewayClients", "routerClients", "metricsClients")
    made = release(merged(MINIMAL, {"networkPolicy": {key: [peer] for key in names}}))
    client = ({"app": "x"}, {"kubernetes.io/metadata.name": "clients"})
    for component, port in (("gateway", GATEWAY), ("router", ROUTER), ("decode", 9100)):
        labels = made.workload(component).labels
        assert allowed(made, "ingress", labels, client, port)
        assert not allowed(made, "ingress", labels, STRANGER, port)
    test_pods_reach_whom_their_processes_dial_and_nobody_else(made)


@pytest.mark.parametrize("names", [[], ["redis"], ["otlp"], ["objectStore"], ["kubernetesApi"]])
def test_what_is_outside_is_reached_by_those_who_need_it(names):
    peers = {name: {"peers": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]} for name in names}
    made = release(
        {
            "model": {"source": "s3://bucket/tiny"},
            "redis": {"enabled": False, "url": "redis://elsewhere:6380/0"},
            "planner": {"enabled": True},
            "tracing": {"otlpEndpoint": "otel.example:4317"},
            "networkPolicy": merged({"redis": {"port": 6380}}, peers),
        }
    )
    every = {"gateway", "router", "prefill", "decode", "planner"}
    outside = {
        ("redis", 6380): {"router", "prefill", "decode", "planner"},
        ("otlp", 4317): every,
        ("objectStore", 443): {"router", "prefill", "decode"},
        ("kubernetesApi", 6443): {"planner"},
    }
    for (name, port), who in outside.items():
        for component in every:
            labels = made.workload(component).labels
            near, far = (
                allowed(made, "egress", labels, address, port)
                for address in ("10.9.0.1", "8.8.8.8")
            )
            if (component, name) == ("planner", "objectStore"):
                continue  # the API that it calls has the same port
            wanted = component in who
            if name in names:
                assert (near, far) == (wanted, False), (component, name)
            elif wanted:
                assert far == (name not in names) or near, (component, name)


@pytest.mark.parametrize(
    ("model", "asks"),
    [
        ({"source": "gs://bucket/tiny"}, True),
        ({"source": "s3://bucket/tiny", "download": {"credentialsSecret": "store"}}, False),
        ({"source": "https://models.example/tiny.gguf"}, False),
        ({"source": "pvc://models/tiny"}, False),
    ],
)
def test_who_downloads_as_its_account_may_ask_the_node_who_that_is(model, asks):
    made = release({"model": model})
    for component in ("gateway", "router", "prefill", "decode", "redis"):
        labels = made.workload(component).labels
        wanted = asks and component in ("router", "prefill", "decode")
        for address, port in (("169.254.169.254", 80), ("169.254.169.252", 988)):
            assert allowed(made, "egress", labels, address, port) == wanted, component
        assert not allowed(made, "egress", labels, "10.9.0.1", 80)


def test_all_pods_resolve_names(made):
    for each in made.of("NetworkPolicy"):
        rules = each["spec"].get("egress", [])
        dns = [r for r in rules for p in r.get("ports", []) if p["port"] == 53]
        if dns:
            for workload in made.workloads:
                assert matches(each["spec"]["podSelector"], workload.labels)
            break
    else:
        assert not made.of("NetworkPolicy")


def test_there_may_be_none():
    assert not release(merged(MINIMAL, {"networkPolicy": {"enabled": False}})).of("NetworkPolicy")
