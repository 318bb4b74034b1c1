"""What the chart tells processes, read by their own settings: a flag that is renamed fails here."""

import re

import pytest

from services.common.security import check_bind
from services.decode.settings import DecodeSettings
from services.gateway.settings import GatewaySettings
from services.planner.settings import PlannerSettings
from services.prefill.settings import PrefillSettings
from services.router.settings import RouterSettings
from services.transfer.settings import TransferSettings
from tests.support.chart import MINIMAL, merged, release

KINDS = {
    "services.gateway": GatewaySettings,
    "services.router": RouterSettings,
    "services.prefill": PrefillSettings,
    "services.decode": DecodeSettings,
    "services.transfer": TransferSettings,
    "services.planner": PlannerSettings,
}
FIELDS = {
    "metadata.name": "demo-x-1",
    "metadata.namespace": "prod",
    "status.podIP": "10.1.2.3",
    "status.hostIP": "10.0.0.7",
}
SECRETS = {
    "url": "redis://:secret@redis.example:6379/0",
    "password": "s3cret",
}
SPARE_S = 10
"""Of the grace, beyond all that is waited for."""


@pytest.fixture
def read(monkeypatch):
    """Settings of a container, as its process would read them."""

    def read(container):
        values = environment(container)
        args = [expanded(each, values) for each in container.get("args", [])]
        kind = KINDS[container["command"][-1]]
        known = {f"--{name.replace('_', '-')}" for name in kind.model_fields}
        known |= {flag.replace("--", "--no-", 1) for flag in known}
        for flag in args:
            assert flag.partition("=")[0] in known, f"{container['command']} knows no {flag}"
        with monkeypatch.context() as patch:
            for name in values:
                if name.startswith("BATON_"):
                    assert name.removeprefix("BATON_").lower() in kind.model_fields, name
                patch.setenv(name, values[name])
            return kind(_cli_parse_args=args)

    return read


def environment(container):
    """Variables of a container, those before expanded in those after."""
    values = {}
    for each in container.get("env", []):
        if "value" in each:
            values[each["name"]] = expanded(str(each["value"]), values)
        elif "fieldRef" in each["valueFrom"]:
            values[each["name"]] = FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            key = each["valueFrom"]["secretKeyRef"]["key"]
            values[each["name"]] = SECRETS[key]
    return values


def expanded(text, values):
    """As Kubernetes does it; what has no value would stay as it is."""
    result = re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), text)
    assert "$(" not in result, f"{text}: no such variable"
    return result


def containers(made):
    """Those of Baton's image that last, with their workloads."""
    for workload in made.services:
        for each in workload.lasting:
            if workload.component != "redis":
                yield workload, each


def test_processes_take_what_they_are_told(made, read):
    encrypted = made.values.get("tls", {}).get("enabled", False)
    host = made.values.get("listenHost", "0.0.0.0")
    for _, container in containers(made):
        settings = read(container)
        assert container["command"] == ["python", "-m", f"services.{container['name']}"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        named = {"gateway": "http", "transfer": "transfer"}.get(container["name"], "grpc")
        assert settings.address == f"{host}:{ports[named]}"
        metrics = "transfer-metrics" if container["name"] == "transfer" else "metrics"
        assert settings.metrics_address == f"{host}:{ports[metrics]}"
        assert settings.process_name == FIELDS["metadata.name"]
        assert (settings.tls_ca is not None) == encrypted
        if container["name"] != "gateway":
            encryption = settings.tls_cert is not None
            assert settings.insecure is not encryption
            check_bind(settings.address, encrypted=encryption, insecure=settings.insecure)
        else:
            https = settings.https_cert is not None
            check_bind(settings.address, encrypted=https, insecure=settings.insecure)
            assert settings.insecure is not (https and encrypted)


def test_files_that_are_told_of_are_mounted(made, read):
    for workload, container in containers(made):
        settings = read(container)
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        texts = [str(value) for value in settings.model_dump().values() if value]
        files = [text for text in texts if re.match(r"^/\w", text)]
        files += re.findall(r"ssl_\w+=([^&]+)", str(getattr(settings, "redis", "")))
        for file in files:
            assert any(f"{file}/".startswith(f"{mount}/") for mount in mounts), (
                f"{workload.name} is told of {file}, which is not mounted"
            )


def test_the_fleet_agrees(made, read):
    """On its Redis, name, model, targets, KV's form; and every address leads to who is meant."""
    told = {c["name"]: (w, read(c)) for w, c in containers(made)}
    members = [told[name][1] for name in ("router", "prefill", "decode", "planner") if name in told]
    assert len({(each.redis, each.fleet) for each in members}) == 1
    router, prefill, decode = (told[name][1] for name in ("router", "prefill", "decode"))
    assert router.model == str(prefill.model) == str(decode.model)
    assert (prefill.dtype, prefill.block_size) == (decode.dtype, decode.block_size)
    assert router.model_name in ("", prefill.model_name)
    assert prefill.model_name == decode.model_name
    for worker in (prefill, decode):
        assert worker.worker_id == FIELDS["metadata.name"]
        assert worker.advertise == f"{FIELDS['status.podIP']}:7601"
        shared = made.values.get("transfer", {}).get("mode") == "daemonSet"
        host = FIELDS["status.hostIP" if shared else "status.podIP"]
        assert worker.transfer == f"{host}:7610"
    gateway = told["gateway"][1]
    target = re.fullmatch(r"dns:///([\w-]+)\.([\w-]+)\.svc:(\d+)", gateway.router)
    service = made.named("Service", target[1])
    assert target[2] == made.namespace
    assert service["spec"]["clusterIP"] == "None"  # its name is all routers' addresses
    assert made.chosen(service["spec"]["selector"]) == [made.workload("router")]
    assert int(target[3]) in [port["port"] for port in service["spec"]["ports"]]
    if made.of("StatefulSet"):
        host = re.fullmatch(r"rediss?://(?::\w+@)?([\w-]+)\.prod\.svc:6379/0(\?.*)?", router.redis)
        redis = made.named("Service", host[1])
        assert made.chosen(redis["spec"]["selector"]) == [made.workload("redis")]
        assert router.redis.startswith("rediss:") == (router.tls_ca is not None)


def test_the_planner_knows_pools_bounds_and_targets(made, read):
    told = {c["name"]: read(c) for _, c in containers(made)}
    planner = told.get("planner")
    if planner is None:
        assert not made.values.get("planner", {}).get("enabled")
        return
    assert planner.scaler == "kubernetes"
    assert planner.namespace == made.namespace
    assert planner.prefill_deployment == made.workload("prefill").name
    assert planner.decode_deployment == made.workload("decode").name
    assert planner.identity == FIELDS["metadata.name"]
    assert planner.ttft_target_s == told["router"].ttft_interactive_s
    assert planner.itl_target_s == told["router"].itl_interactive_s
    assert planner.dry_run == made.values["planner"].get("dryRun", False)
    assert planner.config  # which refuses bounds that can't be held
    (role,) = made.of("Role")
    leases = [rule for rule in role["rules"] if "leases" in rule["resources"]]
    assert [planner.lease] in [rule.get("resourceNames") for rule in leases]


def test_pods_get_the_time_that_their_processes_take_to_end(made, read):
    for workload in made.services:
        grace = workload.pod["terminationGracePeriodSeconds"]
        for container in workload.pod["containers"]:
            before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
            waits = before.get("seconds", 0)
            if workload.component != "redis":
                settings = read(container)
                waits += getattr(settings, "grace_s", 0) + getattr(settings, "drain_seconds", 0)
            assert grace >= waits + SPARE_S, workload.name


@pytest.mark.parametrize("component", ["gateway", "router"])
def test_what_clients_call_goes_on_until_all_know_that_it_is_not_ready(component):
    (container,) = release().workload(component).pod["containers"]
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] >= 1


def test_values_reach_the_processes(read):
    values = {
        "targets": {
            "interactive": {"ttftSeconds": 0.75, "itlSeconds": 0.05},
            "batch": {"ttftSeconds": 30, "itlSeconds": 1.5},
        },
        "router": {
            "tenantLimits": "acme=10/s burst:20 streams:4, *=2/s",
            "tenantWeights": "a=2,b=0.5",
            "disaggregation": "always",
            "maxWaiting": 2000000,
            "graceSeconds": 1200,
            "extraArgs": ["--ttft-slack-s=0.5"],
        },
        "prefill": {"kvMib": 65536, "threads": 4, "maxStepTokens": 2048, "drainSeconds": 45.5},
        "decode": {"extraArgs": ["--canary-ratio=0"]},
        "gateway": {"maxBodyBytes": 268435456, "ui": "on"},
        "workers": {"dtype": "float32", "blockSize": 32},
        "model": {"name": "Tiny One"},
        "tracing": {"otlpEndpoint": "otel.example:4317", "ratio": 0.01},
        "logging": {"level": "WARNING"},
    }
    made = release(merged(MINIMAL, values))
    told = {container["name"]: read(container) for _, container in containers(made)}
    router = told["router"]
    assert (router.ttft_interactive_s, router.itl_interactive_s) == (0.75, 0.05)
    assert (router.ttft_batch_s, router.itl_batch_s) == (30, 1.5)
    assert router.tenant_limits == "acme=10/s burst:20 streams:4, *=2/s"
    assert router.weights == {"a": 2, "b": 0.5}
    assert (router.disaggregation, router.max_waiting) == ("always", 2000000)
    assert (router.grace_s, router.ttft_slack_s) == (1200, 0.5)
    assert told["prefill"].kv_bytes == 65536 * 2**20
    assert (told["prefill"].threads, told["prefill"].max_step_tokens) == (4, 2048)
    assert told["prefill"].drain_seconds == 45.5
    assert told["prefill"].served_name == told["decode"].served_name == "Tiny One"
    assert told["decode"].canary_ratio == 0
    assert (told["gateway"].max_body_bytes, told["gateway"].ui) == (268435456, "on")
    for each in told.values():
        assert each.log_level == "WARNING"
        assert (each.otlp_endpoint, each.trace_ratio) == ("otel.example:4317", 0.01)


def test_keys_and_passwords_are_never_in_arguments(made):
    for workload in made.workloads:
        for container in workload.containers:
            text = " ".join([*container.get("command", []), *container.get("args", [])])
            assert not re.search(r"redis://[^ ]*:[^$@ ]+@", text)
            assert "--redis=" not in text


def test_redis_keeps_what_is_in_it(read):
    """Evicting a fleet's keys would lose claims."""
    (config,) = [each for each in release().of("ConfigMap") if "redis" in each["metadata"]["name"]]
    lines = dict(line.split(" ", 1) for line in config["data"]["redis.conf"].splitlines())
    assert lines["maxmemory-policy"] == "noeviction"
    limit = release().workload("redis").pod["containers"][0]["resources"]["limits"]["memory"]
    assert int(lines["maxmemory"].removesuffix("mb")) < int(limit.removesuffix("Mi"))
