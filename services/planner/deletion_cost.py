"""Which pods of a Deployment go first when it has fewer replicas.

Kubernetes deletes pods that are not ready, then those whose annotation says that they cost least.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kubernetes.aio.client import ApiClient, CoreV1Api, V1Pod

from services.planner.kubernetes_api import ScaleMissing, asked

log = logging.getLogger(__name__)

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"


class DeletionCosts:
    """Annotates pods. Pods that are gone meanwhile do not matter."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._pods = CoreV1Api(api)
        self._namespace = namespace

    async def mark(self, selector: str, victims: Sequence[str]) -> None:
        """Makes `victims` the first to go, in their order, of the pods that `selector` finds, and
        takes the mark from those that survived an earlier choice. Raises ScaleError."""
        pods = await asked(
            f"cannot list the pods of {selector}",
            self._pods.list_namespaced_pod(self._namespace, label_selector=selector),
        )
        costs = {name: str(rank - len(victims)) for rank, name in enumerate(victims)}
        here = {_name(pod): _annotations(pod).get(ANNOTATION) for pod in pods.items}
        if strangers := costs.keys() - here.keys():
            log.warning("no pods of %s: %s", selector, ", ".join(sorted(strangers)))
        for name, cost in here.items():
            if costs.get(name) != cost:
                await self._annotate(name, costs.get(name))

    async def _annotate(self, name: str, cost: str | None) -> None:
        body: dict[str, Any] = {"metadata": {"annotations": {ANNOTATION: cost}}}
        try:
            await asked(
                f"cannot annotate the pod {name}",
                self._pods.patch_namespaced_pod(
                    name, self._namespace, body, _content_type="application/merge-patch+json"
                ),
            )
        except ScaleMissing:
            log.info("pod %s is gone already", name)


def _name(pod: V1Pod) -> str:
    return str(pod.metadata.name) if pod.metadata else ""


def _annotations(pod: V1Pod) -> Mapping[str, str]:
    return (pod.metadata.annotations if pod.metadata else None) or {}
