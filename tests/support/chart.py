"""The chart, rendered by Helm's own engine, and what it makes of values in words for tests."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "baton"
NAME = "demo"
NAMESPACE = "prod"
MINIMAL = {"model": {"source": "pvc://models/tiny"}}

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges values: maps by key, anything else replaced."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def value_sets() -> dict[str, dict[str, Any]]:
    """By name: those of the chart's `ci` folder, and what they leave out."""
    sets = {
        path.name.removesuffix(".yaml").removesuffix("-values"): yaml.safe_load(path.read_text())
        for path in sorted((CHART / "ci").glob("*.yaml"))
    }
    assert sets, "helm/baton/ci has no values"
    more = {
        "dry-run": {"planner": {"enabled": True, "dryRun": True}},
        "fixed": {"prefill": {"replicas": 3}, "decode": {"replicas": 0}},
        "planned": {"planner": {"enabled": True, "replicas": 2, "gpuBudget": 6}},
        "s3": {"model": {"source": "s3://bucket/models/tiny"}},
        "https": {"model": {"source": "https://models.example/tiny.gguf"}},
        "image": {"model": {"source": "image://registry.example/models/tiny:1#tiny"}},
        "nixl": {"transfer": {"peerTransport": "nixl"}},
    }
    return sets | {name: merged(MINIMAL, values) for name, values in more.items()}


@cache
def chart() -> helm.Chart:
    """As it is when the session begins."""
    return helm.Chart.load(CHART)


def render(
    values: Mapping[str, Any], name: str = NAME, namespace: str = NAMESPACE
) -> dict[str, str]:
    """Each template's text, by its path in the chart. Raises helm.HelmError."""
    texts = chart().render(dict(values), name=name, namespace=namespace)
    return {path.removeprefix("baton/"): text for path, text in texts.items()}


@cache
def _release(values: str, name: str, namespace: str) -> "Release":
    return Release(render(json.loads(values), name, namespace), json.loads(values), namespace)


def release(
    values: Mapping[str, Any] = MINIMAL, name: str = NAME, namespace: str = NAMESPACE
) -> "Release":
    """What these values make. Rendered once in a session."""
    return _release(json.dumps(values, sort_keys=True), name, namespace)


@dataclass(frozen=True)
class Workload:
    """An object that makes pods, or a pod by itself."""

    object: Object

    @property
    def kind(self) -> str:
        return self.object["kind"]

    @property
    def name(self) -> str:
        return self.object["metadata"]["name"]

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def template(self) -> Object:
        return self.object if self.kind == "Pod" else self.object["spec"]["template"]

    @property
    def labels(self) -> dict[str, str]:
        """Of its pods."""
        return self.template["metadata"]["labels"]

    @property
    def pod(self) -> Object:
        """Its pods' spec."""
        return self.template["spec"]

    @property
    def containers(self) -> list[Object]:
        """All of them, in the order in which they start."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def lasting(self) -> list[Object]:
        """Those that run as long as the pod: no init containers but sidecars."""
        return [
            each
            for each in self.containers
            if each in self.pod["containers"] or each.get("restartPolicy") == "Always"
        ]

    @property
    def ports(self) -> dict[str, int]:
        """Of all its containers, by name."""
        return {
            port["name"]: port["containerPort"]
            for each in self.containers
            for port in each.get("ports", [])
        }

    @property
    def volumes(self) -> dict[str, Object]:
        return {each["name"]: each for each in self.pod.get("volumes", [])}


class Release:
    """All that one set of values makes."""

    def __init__(self, texts: dict[str, str], values: dict[str, Any], namespace: str) -> None:
        self.texts = texts
        self.values = values
        self.namespace = namespace

    @cached_property
    def by_template(self) -> dict[str, list[Object]]:
        return {
            path: [each for each in yaml.load_all(text, LOADER) if each]
            for path, text in self.texts.items()
            if path.endswith(".yaml")
        }

    @property
    def notes(self) -> str:
        return self.texts["templates/NOTES.txt"]

    @cached_property
    def objects(self) -> list[Object]:
        return [each for objects in self.by_template.values() for each in objects]

    def of(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def named(self, kind: str, name: str) -> Object:
        (found,) = [each for each in self.of(kind) if each["metadata"]["name"] == name]
        return found

    @cached_property
    def workloads(self) -> list[Workload]:
        kinds = ("Deployment", "StatefulSet", "DaemonSet", "Pod")
        return [Workload(each) for each in self.objects if each["kind"] in kinds]

    @property
    def services(self) -> list[Workload]:
        """Those that serve: not the pod of `helm test`."""
        return [each for each in self.workloads if each.kind != "Pod"]

    def workload(self, component: str) -> Workload:
        (found,) = [each for each in self.services if each.component == component]
        return found

    def chosen(self, labels: Mapping[str, str]) -> list[Workload]:
        """Workloads whose pods have all these labels."""
        return [each for each in self.workloads if labels.items() <= each.labels.items()]

    @cached_property
    def strings_of_values(self) -> set[str]:
        return set(_strings(self.values))


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector (matchLabels and matchExpressions) takes these labels."""
    if not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    for each in selector.get("matchExpressions", []):
        key, values = each["key"], each.get("values", [])
        held = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }[each["operator"]]
        if not held:
            return False
    return True


def references(value: Any) -> Iterator[tuple[str, str, str]]:
    """(kind, name, key or "") of each secret, config map, claim and account that is named."""
    if isinstance(value, list):
        for each in value:
            yield from references(each)
    elif isinstance(value, dict):
        yield from _reference(value)
        for each in value.values():
            yield from references(each)


def _reference(value: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for word, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
        if isinstance(found := value.get(word), dict):
            yield kind, found["name"], found["key"]
    for word, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
        if isinstance(found := value.get(word), dict):
            yield kind, found["name"], ""
    for word, kind, field in (
        ("secret", "Secret", "secretName"),
        ("configMap", "ConfigMap", "name"),
    ):
        if isinstance(found := value.get(word), dict) and field in found:
            keys = [item["key"] for item in found.get("items", [])] or [""]
            yield from ((kind, found[field], key) for key in keys)
    if isinstance(found := value.get("persistentVolumeClaim"), dict):
        yield "PersistentVolumeClaim", found["claimName"], ""
    if "serviceAccountName" in value:
        yield "ServiceAccount", value["serviceAccountName"], ""
    for each in value.get("imagePullSecrets") or []:
        yield "Secret", each["name"], ""


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def mib(quantity: Any) -> float:
    """A quantity of memory in MiB."""
    text = str(quantity)
    units = {"Ki": 1 / 1024, "Mi": 1.0, "Gi": 1024.0, "Ti": 1024.0 * 1024}
    if text[-2:] in units:
        return float(text[:-2]) * units[text[-2:]]
    return float(text) / (1024 * 1024)
