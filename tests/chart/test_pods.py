"""What every pod holds to: security, ports, probes, memory, time to end."""

import pytest

from tests.support.chart import MINIMAL, merged, mib, release


def test_no_container_has_more_rights_than_it_needs(made):
    for workload in made.workloads:
        pod = workload.pod
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.get("hostNetwork")
        assert not pod.get("hostIPC")
        assert pod["enableServiceLinks"] is False  # its variables would begin like settings
        for container in workload.containers:
            context = pod["securityContext"] | container["securityContext"]
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] > 0
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not context.get("privileged")


def test_only_the_planner_gets_a_token(made):
    for workload in made.workloads:
        assert workload.pod["automountServiceAccountToken"] is (workload.component == "planner")
    accounts = [each.pod["serviceAccountName"] for each in made.workloads]
    for each in made.services:
        if each.component == "planner":
            assert accounts.count(each.pod["serviceAccountName"]) == 1


def test_host_paths_and_host_pids_are_of_the_daemon_set_alone(made):
    chosen = made.values.get("transfer", {}).get("mode") == "daemonSet"
    for workload in made.workloads:
        shares = workload.component in ("prefill", "decode", "transfer") and chosen
        assert bool(workload.pod.get("hostPID")) == shares
        host_paths = [v for v in workload.pod.get("volumes", []) if "hostPath" in v]
        assert len(host_paths) == shares


def test_every_port_has_a_name_of_its_own(made):
    for workload in made.workloads:
        ports = [port for each in workload.containers for port in each.get("ports", [])]
        assert all(port.get("name") for port in ports)
        assert len({port["name"] for port in ports}) == len(ports)
        assert len({port["containerPort"] for port in ports}) == len(ports)


def test_every_container_says_what_it_needs(made):
    for workload in made.workloads:
        for container in workload.containers:
            resources = container["resources"]
            assert mib(resources["limits"]["memory"]) >= mib(resources["requests"]["memory"]) > 0
            assert resources["requests"]["cpu"]


def test_scratch_space_is_there_under_the_read_only_root(made):
    for workload in made.services:
        for container in workload.lasting:
            writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
            assert "/tmp" in writable, container["name"]


def test_probes_ask_what_the_processes_answer(made):
    encrypted = made.values.get("tls", {}).get("enabled", False)
    for workload in made.services:
        for container in workload.lasting:
            probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
            if workload.component == "redis":
                assert all(probe["exec"]["command"] for probe in probes)
                continue
            for probe in probes:
                _check_port(probe, container)
            _startup, readiness, liveness = probes
            if container["name"] == "gateway":
                assert [p["httpGet"]["path"] for p in probes] == ["/health", "/ready", "/health"]
            elif encrypted:
                assert [p["httpGet"]["path"] for p in probes] == ["/ready", "/ready", "/live"]
                assert all(p["httpGet"].get("scheme", "HTTP") == "HTTP" for p in probes)
            else:
                services = [p["grpc"].get("service") or "" for p in probes]
                assert services == ["", "", "live"]
            assert _patience_s(liveness) >= 30
            assert _patience_s(readiness) <= 15


def _check_port(probe, container):
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    if "grpc" in probe:
        assert probe["grpc"]["port"] == ports.get("grpc", ports.get("transfer"))
    else:
        assert probe["httpGet"]["port"] in ports


def _patience_s(probe):
    return probe["periodSeconds"] * probe["failureThreshold"]


def test_workers_and_their_transfer_service_share_memory_and_see_each_other(made):
    for role in ("prefill", "decode"):
        workload = made.workload(role)
        (worker,) = workload.pod["containers"]
        sidecars = [each for each in workload.lasting if each["name"] == "transfer"]
        if not sidecars:
            transfer = made.workload("transfer")
            (service,) = transfer.pod["containers"]
            assert workload.volumes["kv"] == transfer.volumes["kv"]
        else:
            (service,) = sidecars
            assert workload.pod["shareProcessNamespace"] is True
            volume = workload.volumes["kv"]["emptyDir"]
            assert volume["medium"] == "Memory"
            # The transfer service takes the memory, so its container's limit holds it.
            shared = mib(volume["sizeLimit"])
            assert mib(service["resources"]["limits"]["memory"]) >= shared + 256
            segments = _bytes(worker, "--segment-bytes") + _bytes(service, "--peer-segment-bytes")
            assert shared * 1024 * 1024 > segments
        assert _mount(worker, "kv")["mountPath"] == _mount(service, "kv")["mountPath"]
        assert f"--segment-dir={_mount(service, 'kv')['mountPath']}" in service["args"]
        assert worker["securityContext"] == service["securityContext"]
        # The process, the model and the KV pools.
        assert mib(worker["resources"]["limits"]["memory"]) > _bytes(worker, "--kv-bytes") / 2**20


def _mount(container, name):
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == name]
    assert not mount.get("readOnly")
    return mount


def _bytes(container, flag):
    (text,) = [each for each in container["args"] if each.startswith(f"{flag}=")]
    return int(text.partition("=")[2])


def test_the_sidecar_starts_before_the_worker_and_ends_after_it():
    pod = release().workload("decode").pod
    assert [each["name"] for each in pod["initContainers"]][-1] == "transfer"
    assert pod["initContainers"][-1]["restartPolicy"] == "Always"
    assert [each["name"] for each in pod["containers"]] == ["decode"]


@pytest.mark.parametrize("component", ["gateway", "router", "prefill", "decode"])
def test_pods_are_spread_and_placed(component):
    own = {
        "nodeSelector": {"gpu": "fast"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "x"},
        "extraEnv": [{"name": "LANG", "value": "C"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "affinity": {"podAntiAffinity": {}},
    }
    made = release(merged(MINIMAL, {component: own, "imagePullSecrets": [{"name": "registry"}]}))
    workload = made.workload(component)
    pod = workload.pod
    spread = pod["topologySpreadConstraints"]
    assert {each["topologyKey"] for each in spread} == {
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    }
    for each in spread:
        assert made.chosen(each["labelSelector"]["matchLabels"]) == [workload]
    for name in ("nodeSelector", "tolerations", "priorityClassName", "affinity"):
        assert pod[name] == own[name]
    assert workload.labels["team"] == "x"
    assert workload.template["metadata"]["annotations"]["a"] == "b"
    (container,) = pod["containers"]
    assert own["extraEnv"][0] in container["env"]
    assert own["extraVolumeMounts"][0] in container["volumeMounts"]
    assert own["extraVolumes"][0] in pod["volumes"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_gpus_are_asked_for_by_pool():
    own = {"gpu": {"count": 2}, "runtimeClassName": "nvidia", "imageTag": "1-cuda"}
    made = release(merged(MINIMAL, {"prefill": own}))
    (worker,) = made.workload("prefill").pod["containers"]
    for part in ("requests", "limits"):
        assert worker["resources"][part]["nvidia.com/gpu"] == 2
    assert made.workload("prefill").pod["runtimeClassName"] == "nvidia"
    assert worker["image"].endswith(":1-cuda")
    (other,) = made.workload("decode").pod["containers"]
    assert "nvidia.com/gpu" not in other["resources"]["limits"]


@pytest.mark.parametrize("component", ["router", "redis"])
def test_pods_are_replaced_when_their_configuration_changes(component):
    changed = {
        "router": {"model": {"chatTemplate": "{{ messages }}"}},
        "redis": {"redis": {"maxMemoryMib": 300}},
    }
    before = {"router": {"model": {"chatTemplate": "{{ bos_token }}"}}, "redis": {}}
    sums = [
        release(merged(MINIMAL, each[component]))
        .workload(component)
        .template["metadata"]["annotations"]["checksum/config"]
        for each in (before, changed)
    ]
    assert sums[0] != sums[1]
