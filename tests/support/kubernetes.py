"""A Kubernetes that keeps its objects, and what it needs of Deployments: scale, versions, pods.

It lets no one do more than the planner's rules say, and fails on request.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp.web
import kmock
from kubernetes.aio.client import ApiClient

from services.planner.deletion_cost import ANNOTATION
from services.planner.kubernetes_api import connect
from services.planner.permissions import RULES, Reach, Rule

NAMESPACE = "models"
PREFILL, DECODE, LEASE = "baton-prefill", "baton-decode", "baton-planner"
_NAMED = {Reach.DEPLOYMENTS: {PREFILL, DECODE}, Reach.LEASE: {LEASE}}
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: it
contexts: [{{name: it, context: {{cluster: it, user: it}}}}]
clusters: [{{name: it, cluster: {{server: "{url}"}}}}]
users: [{{name: it, user: {{token: secret}}}}]
"""

DEPLOYMENTS = kmock.resource("apps/v1/deployments")
PODS = kmock.resource("v1/pods")
LEASES = kmock.resource("coordination.k8s.io/v1/leases")

Key = tuple[kmock.resource, str, str]


class Refused(kmock.KubernetesError):
    """An answer other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status=status, reason="Refused", message=message, details={})


class Cluster(kmock.KubernetesEmulator):
    """What tests look at, and how they make it fail."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = itertools.count(1)
        self.failing: dict[tuple[str, str], int] = {}
        """Statuses by verb and resource."""
        self.answering: dict[tuple[str, str], str] = {}
        """What is answered, whatever was asked, by verb and resource."""
        self.silent: set[tuple[str, str]] = set()
        """What is never answered, by verb and resource."""
        self.meanwhile: list[tuple[str, str, Any]] = []
        """What happens right after a request: its verb and resource, and a function."""
        self.used: set[tuple[str, str, str]] = set()
        """Groups, resources and verbs."""
        self.asked: list[tuple[str, str]] = []
        for name, role in ((PREFILL, "prefill"), (DECODE, "decode")):
            self.deploy(name, role, 0)

    def deploy(self, name: str, role: str, replicas: int) -> None:
        labels = {"app": role}
        self.put(
            (DEPLOYMENTS, NAMESPACE, name),
            {
                "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {"containers": []}},
                },
            },
        )
        self.settle()

    def put(self, key: Key, data: dict[str, Any]) -> None:
        data["metadata"]["resourceVersion"] = str(next(self.versions))
        self.objects[key] = data

    def get(self, key: Key) -> dict[str, Any]:  # type: ignore[override]
        return dict(self.objects[key].raw)

    def deployment(self, name: str) -> dict[str, Any]:
        return self.get((DEPLOYMENTS, NAMESPACE, name))

    def replicas(self, name: str) -> int:
        return int(self.deployment(name)["spec"]["replicas"])

    def set_replicas(self, name: str, replicas: int) -> None:
        self.touch(name, {"spec": {"replicas": replicas}})

    def touch(self, name: str, changes: dict[str, Any]) -> None:
        """A new version of a Deployment."""
        version = {"resourceVersion": str(next(self.versions))}
        self.objects[DEPLOYMENTS, NAMESPACE, name].patch(changes | {"metadata": version})

    def pods(self, role: str) -> dict[str, str | None]:
        """Deletion costs by pod."""
        return {
            name: pod["metadata"].get("annotations", {}).get(ANNOTATION)
            for name, pod in self._live("pods").items()
            if pod["metadata"]["labels"]["app"] == role
        }

    def lose(self, pod: str) -> None:
        del self.objects[PODS, NAMESPACE, pod]

    def events(self) -> list[dict[str, Any]]:
        return list(self._live("events").values())

    def settle(self) -> None:
        """Starts and stops pods as the controllers of Deployments do."""
        for name, deployment in self._live("deployments").items():
            role = deployment["spec"]["selector"]["matchLabels"]["app"]
            replicas, pods = deployment["spec"]["replicas"], self.pods(role)
            by_cost = sorted(pods, key=lambda pod: (int(pods[pod] or 0), pod), reverse=True)
            for pod in by_cost[replicas:]:
                self.lose(pod)
            for _ in range(replicas - len(pods)):
                pod = f"{role}-{next(self.versions)}"
                meta = {"name": pod, "namespace": NAMESPACE, "labels": {"app": role}}
                data = {"metadata": meta, "spec": {"containers": []}}
                self.put((PODS, NAMESPACE, pod), data)
            self.touch(name, {"status": {"replicas": replicas, "readyReplicas": replicas}})

    def _live(self, plural: str) -> dict[str, dict[str, Any]]:
        return {
            name: dict(found.raw)
            for (resource, _, name), found in list(self.objects.items())
            if resource.plural == plural and not found.deleted
        }

    async def _handle(self, request: kmock.Request) -> aiohttp.web.StreamResponse:
        verb = _VERBS[request.method.value.upper()]
        verb = "list" if verb == "get" and request.name is None else verb
        plural = request.resource.plural + (
            f"/{request.subresource}" if request.subresource else ""
        )
        what = (verb, plural)
        self.asked.append(what)
        if what in self.silent:
            await asyncio.sleep(3600)
        if status := self.failing.get(what):
            raise Refused(status, f"made to answer {status}")
        if (text := self.answering.get(what)) is not None:
            return aiohttp.web.Response(text=text, content_type="application/json")
        self._permit(request, verb, plural)
        answer = aiohttp.web.json_response(await self._answer(request, verb))
        for one in [one for one in self.meanwhile if one[:2] == what]:
            self.meanwhile.remove(one)
            one[2]()
        return answer

    def _permit(self, request: kmock.Request, verb: str, plural: str) -> None:
        group = request.resource.group
        if request.namespace == NAMESPACE and any(
            (rule.group, rule.resource) == (group, plural)
            and verb in rule.verbs
            and _reaches(rule, request.name)
            for rule in RULES
        ):
            self.used.add((group, plural, verb))
            return
        raise Refused(403, f"cannot {verb} resource {plural!r} in API group {group!r}")

    async def _answer(self, request: kmock.Request, verb: str) -> dict[str, Any]:
        if verb == "list":
            return {"metadata": {}, "items": self._selected(request)}
        if verb == "create":
            return self._create(request.resource, request.data)
        key = (request.resource, NAMESPACE, request.name)
        if key not in self.objects or self.objects[key].deleted:
            raise Refused(404, f"{request.name} not found")
        if verb in ("patch", "update"):
            self._write(key, request.data, verb)
        return _scale_of(self.get(key)) if request.subresource else self.get(key)

    def _create(self, resource: kmock.resource, data: dict[str, Any]) -> dict[str, Any]:
        key = (resource, NAMESPACE, data["metadata"]["name"])
        if key in self.objects and not self.objects[key].deleted:
            raise Refused(409, f"{key[2]} already exists")
        self.put(key, data)
        return self.get(key)

    def _write(self, key: Key, data: dict[str, Any], verb: str) -> None:
        expected = data["metadata"].get("resourceVersion")
        if expected not in (None, self.get(key)["metadata"]["resourceVersion"]):
            raise Refused(409, f"the object {key[2]} has been modified")
        data["metadata"]["resourceVersion"] = str(next(self.versions))
        if verb == "update":
            self.objects[key] = data
        else:
            self.objects[key].patch(data)

    def _selected(self, request: kmock.Request) -> list[dict[str, Any]]:
        wanted = dict(part.split("=") for part in request.params["labelSelector"].split(","))
        found = self._live(request.resource.plural).values()
        return [one for one in found if wanted.items() <= one["metadata"]["labels"].items()]


def _reaches(rule: Rule, name: str | None) -> bool:
    return rule.reach is Reach.NAMESPACE or name in _NAMED[rule.reach]


def _scale_of(deployment: dict[str, Any]) -> dict[str, Any]:
    labels = deployment["spec"]["selector"]["matchLabels"]
    return {
        "kind": "Scale",
        "metadata": deployment["metadata"],
        "spec": {"replicas": deployment["spec"]["replicas"]},
        "status": {
            "replicas": deployment["spec"]["replicas"],
            "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
        },
    }


@asynccontextmanager
async def serving() -> AsyncIterator[Cluster]:
    """A cluster that can be reached at its `url`."""
    async with Cluster() as cluster, kmock.Server(cluster):
        yield cluster


def kubeconfig(cluster: Cluster, directory: Path) -> Path:
    """A file by which to reach it."""
    path = directory / "kubeconfig"
    path.write_text(KUBECONFIG.format(url=str(cluster.url).rstrip("/")))
    return path


@asynccontextmanager
async def client(cluster: Cluster, directory: Path) -> AsyncIterator[ApiClient]:
    api = await connect(kubeconfig(cluster, directory))
    try:
        yield api
    finally:
        await api.close()
