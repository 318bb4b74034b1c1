"""values.yaml, its schema, and what is refused."""

import json
import re

import helm_python as helm
import jsonschema
import pytest
import yaml

from tests.support.chart import CHART, MINIMAL, ROOT, merged, release, render

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def resolved(schema):
    while "$ref" in schema:
        (name,) = re.findall(r"^#/\$defs/(\w+)$", schema["$ref"])
        schema = SCHEMA["$defs"][name]
    return schema


def parts(schema):
    """The schema and those that it joins."""
    schema = resolved(schema)
    found = [schema]
    for word in ("allOf", "anyOf", "oneOf"):
        for each in schema.get(word, []):
            found += parts(each)
    return found


def properties(schema):
    return {
        name: value for each in parts(schema) for name, value in each.get("properties", {}).items()
    }


def walk(values, schema, path=()):
    """(path, value, its schema) of each value."""
    for name, value in values.items():
        inner = properties(schema).get(name)
        yield (*path, name), value, inner
        if isinstance(value, dict) and inner is not None and properties(inner):
            yield from walk(value, inner, (*path, name))


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_value_is_in_the_schema():
    for path, _, schema in walk(VALUES, SCHEMA):
        assert schema is not None, ".".join(path)


def test_every_name_in_the_schema_is_a_value():
    def compare(schema, values, path=()):
        for name, inner in properties(schema).items():
            assert name in values, ".".join((*path, name))
            own = name not in KUBERNETES_OWN
            if own and isinstance(values[name], dict) and values[name] and properties(inner):
                compare(inner, values[name], (*path, name))

    compare(SCHEMA, VALUES)


def test_unknown_names_are_refused_everywhere():
    paths = [path for path, value, schema in walk(VALUES, SCHEMA) if properties(schema)]
    for path in [(), *paths]:
        schema = SCHEMA
        for name in path:
            schema = properties(schema)[name]
        closed = [each.get("additionalProperties") for each in parts(schema)]
        assert False in closed or any(
            each.get("unevaluatedProperties") is False for each in parts(schema)
        ), ".".join(path) or "the root"


def test_a_section_without_values_is_refused_by_its_name():
    """As where all lines below its name are comments: Helm then takes the defaults away too."""
    free = {"global", "resources"}
    for path, _, schema in walk(VALUES, SCHEMA):
        if not properties(schema) or path[-1] in free:
            continue
        values = None
        for name in reversed(path):
            values = {name: values}
        with pytest.raises(helm.HelmValuesError, match=f"missing property '{path[-1]}'"):
            render(merged(MINIMAL, values))


def test_every_value_has_a_comment():
    """Right above it, or above its neighbours where they say one thing together."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    bare = []
    for number, line in enumerate(lines):
        if re.match(r"^ *[A-Za-z]\w*:", line) and not _is_inside_free_map(lines, number):
            above = lines[number - 1].strip()
            section = not line.split(":", 1)[1].strip()
            documented = above.startswith("#") or "#" in line
            if not documented and not section:
                bare.append(f"{number + 1}: {line.strip()}")
    assert bare == []


def _is_inside_free_map(lines, number):
    """Below a key of ours whose value is Kubernetes' own, such as `resources`."""
    indent = len(lines[number]) - len(lines[number].lstrip())
    for above in reversed(lines[:number]):
        level = len(above) - len(above.lstrip())
        if above.strip() and not above.strip().startswith("#") and level < indent:
            name = above.strip().lstrip("- ").split(":")[0]
            own = name in KUBERNETES_OWN
            return own or (level > 0 and _is_inside_free_map(lines, lines.index(above)))
    return False


KUBERNETES_OWN = {
    "resources",
    "podSecurityContext",
    "securityContext",
    "metricsClients",
    "namespaceSelector",
    "matchLabels",
    "dns",
}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, r"model\.source"),
        ({"model": {"source": "/models/tiny"}}, r"model\.source|/model/source"),
        ({"model": {"source": "ftp://host/tiny"}}, r"model\.source|/model/source"),
        ({"model": {"source": "pvc://"}}, r"model\.source|/model/source"),
        ({"model": {"sauce": "pvc://a/b"}}, r"sauce"),
        ({"gatway": {}}, r"gatway"),
        ({"router": {"replicas": -1}}, r"replicas"),
        ({"router": {"replicas": "two"}}, r"replicas"),
        ({"router": {"disaggregation": "sometimes"}}, r"disaggregation"),
        ({"workers": {"dtype": "float8"}}, r"dtype"),
        ({"transfer": {"mode": "host"}}, r"mode"),
        ({"transfer": {"peerTransport": "rdma"}}, r"peerTransport"),
        ({"logging": {"level": "LOUD"}}, r"level"),
        ({"tracing": {"ratio": 2}}, r"ratio"),
        ({"planner": {"enabled": True}, "prefill": {"replicas": 2}}, r"prefill\.replicas.*planner"),
        ({"planner": {"enabled": True}, "decode": {"replicas": 0}}, r"decode\.replicas.*planner"),
        (
            {"planner": {"enabled": True, "prefill": {"minReplicas": 5, "maxReplicas": 2}}},
            r"planner\.prefill.*minReplicas|minReplicas.*maxReplicas",
        ),
        (
            {
                "planner": {
                    "enabled": True,
                    "gpuBudget": 3,
                    "prefill": {"minReplicas": 2},
                    "decode": {"minReplicas": 2},
                }
            },
            r"gpuBudget",
        ),
        ({"redis": {"enabled": False}}, r"redis\.(url|existingSecret)"),
        ({"redis": {"url": "redis://elsewhere:6379/0"}}, r"redis\.enabled"),
        ({"auth": {"enabled": True}}, r"auth\.(existingSecret|keys)"),
        ({"tls": {"enabled": True}}, r"tls\.(existingSecret|certManager)"),
        (
            {"tls": {"enabled": True, "certManager": {"enabled": True}}},
            r"issuerRef",
        ),
        ({"gateway": {"https": {"enabled": True}}}, r"gateway\.https"),
        ({"httpRoute": {"enabled": True}}, r"httpRoute\.parentRefs"),
        ({"grpcRoute": {"enabled": True}}, r"grpcRoute\.parentRefs"),
        (
            {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 4, "maxReplicas": 2}}},
            r"gateway\.autoscaling|minReplicas",
        ),
        (
            {
                "tls": {"enabled": True, "existingSecret": "x"},
                "transfer": {"peerTransport": "nixl"},
            },
            r"peerTransport=nixl.*plain text",
        ),
        ({"redis": {"enabled": False, "url": "redis://a", "existingSecret": "b"}}, r"both set"),
        ({"model": {"source": "https://models.example/m.gguf?token=x"}}, r"query"),
        ({"model": {"source": "s3://bucket"}}, r"bucket"),
        ({"transfer": {"mode": "daemonSet"}}, r"networkPolicy\.nodeCidrs"),
        (
            {"prefill": {"updateStrategy": {"maxSurge": 0, "maxUnavailable": 0}}},
            r"prefill\.updateStrategy",
        ),
        ({"gateway": {"graceSeconds": "long"}}, r"graceSeconds"),
        ({"listenHost": "::"}, r"listenHost"),
        ({"decode": {"extraEnv": [{"name": "POD_IP", "value": "x"}]}}, r"decode\.extraEnv.*POD_IP"),
        ({"router": {"extraEnv": [{"name": "A"}, {"name": "A"}]}}, r"router\.extraEnv.*twice"),
        ({"transfer": {"extraEnv": [{"name": "HOME", "value": "/"}]}}, r"transfer\.extraEnv.*HOME"),
        ({"router": {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}}, r"extraVolumes sets tmp"),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, r"commonLabels sets"),
        ({"prefill": {"podLabels": {"app.kubernetes.io/component": "x"}}}, r"prefill\.podLabels"),
        (
            {"commonLabels": {"team": "a"}, "redis": {"podLabels": {"team": "b"}}},
            r"redis\.podLabels",
        ),
    ],
)
def test_what_can_not_work_is_refused_in_words(values, told):
    given = values if not values or "model" in values else merged(MINIMAL, values)
    with pytest.raises(helm.HelmError) as refused:
        render(given)
    message = str(refused.value)
    assert re.search(told, message, re.DOTALL), message
    assert "nil pointer" not in message
    assert "wrong type" not in message


@pytest.mark.parametrize(
    "values",
    [
        {"model": {"source": "pvc://claim/a/b"}},
        {"model": {"source": "pvc://claim/model.gguf"}},
        {"model": {"source": "image://registry.example:5000/models/m@sha256:ab#deep/m.gguf"}},
        {"model": {"source": "s3://bucket/a/b/"}},
        {"model": {"source": "gs://bucket/a"}},
        {"model": {"source": "https://models.example/a/b/m.gguf"}},
    ],
)
def test_every_kind_of_source_brings_the_model_to_where_processes_look(values):
    made = release(values)
    source = values["model"]["source"]
    for component in ("router", "prefill", "decode"):
        workload = made.workload(component)
        (main,) = workload.pod["containers"]
        (model,) = [a.partition("=")[2] for a in main["args"] if a.startswith("--model=")]
        (mount,) = [m for m in main["volumeMounts"] if m["name"] == "model"]
        assert mount["readOnly"]
        assert model.startswith(f"{mount['mountPath']}/")
        assert model.endswith(source.rstrip("/").rpartition("/")[2].rpartition("#")[2])
        volume = workload.volumes["model"]
        downloads = [c for c in workload.pod.get("initContainers", []) if c["name"] != "transfer"]
        if source.startswith("pvc:"):
            assert volume["persistentVolumeClaim"] == {"claimName": "claim", "readOnly": True}
        elif source.startswith("image:"):
            assert volume["image"]["reference"] == "registry.example:5000/models/m@sha256:ab"
        else:
            (download,) = downloads
            assert "emptyDir" in volume
            assert model in download["args"]
            continue
        assert not downloads


def test_downloads_keep_to_a_claim_and_to_credentials_that_are_named():
    download = {
        "claim": "cache",
        "credentialsSecret": "s3-login",
        "endpoint": "https://s3.example",
        "provider": "Minio",
    }
    made = release({"model": {"source": "s3://bucket/tiny", "download": download}})
    for component in ("router", "decode"):
        workload = made.workload(component)
        assert workload.volumes["model"]["persistentVolumeClaim"]["claimName"] == "cache"
        container = workload.pod["initContainers"][0]
        assert container["envFrom"] == [{"secretRef": {"name": "s3-login"}}]
        env = {each["name"]: each["value"] for each in container["env"]}
        assert env["RCLONE_CONFIG_MODEL_ENDPOINT"] == "https://s3.example"
        (main,) = workload.pod["containers"]
        assert "envFrom" not in main


def test_the_documents_name_values_that_there_are():
    texts = [(ROOT / path).read_text() for path in ("docs/kubernetes.md", "README.md")]
    named = re.findall(r"`([a-zA-Z]+(?:\.[a-zA-Z]+)+)[=`]", " ".join(texts))
    named += re.findall(r"--set ([a-zA-Z.]+)=", " ".join(texts))
    named = [name for name in named if name.split(".")[0] in VALUES]
    assert len(named) > 20
    for name in named:
        value = VALUES
        for part in name.split("."):
            assert part in value, name
            value = value[part]
