"""Pools of workers as Deployments: replicas by the scale subresource, victims by deletion costs.

Watches nothing; each question is asked anew, and what it may do is in `permissions`.
"""

import logging
from collections.abc import Mapping

from kubernetes.aio.client import ApiClient, AppsV1Api, V1Scale

from baton.policy.fleet import Role
from services.planner.decision import Change
from services.planner.deletion_cost import DeletionCosts
from services.planner.events import Events
from services.planner.kubernetes_api import asked
from services.planner.observation import Pool
from services.planner.scaler import ScaleConflict, ScaleUnavailable

log = logging.getLogger(__name__)

_TRIES = 4
"""Each status that a Deployment gets makes it a new version, so writing may take some."""


class KubernetesScaler:
    """A Scaler. A worker's id is its pod's name."""

    def __init__(
        self, api: ApiClient, namespace: str, deployments: Mapping[Role, str], reporter: str
    ) -> None:
        """`reporter`: the name of this pod. Closes nothing: `api` belongs to the caller."""
        self._apps = AppsV1Api(api)
        self._namespace = namespace
        self._deployments = deployments
        self._costs = DeletionCosts(api, namespace)
        self._events = Events(api, namespace, reporter)
        self._uids: dict[str, str] = {}

    async def pools(self) -> Mapping[Role, Pool]:
        """Both pools as their Deployments tell."""
        return {role: await self._pool(name) for role, name in self._deployments.items()}

    async def apply(self, change: Change) -> None:
        """Sets the Deployment's replicas where they are still `change.current`.

        Pods are only marked when there are to be fewer: what survivors of an earlier choice are
        marked with matters then, and not before.
        """
        name = self._deployments[change.role]
        scale = await self._scale(name, change)
        if change.direction == "down":
            await self._costs.mark(_selector(name, scale), change.victims)
        for left in reversed(range(_TRIES)):
            try:
                await self._write(name, scale, change)
                return
            except ScaleConflict:
                if not left:
                    raise
            scale = await self._scale(name, change)

    async def tell(self, change: Change, *, dry_run: bool) -> None:
        """An event on the Deployment."""
        name = self._deployments[change.role]
        await self._events.tell(change, name, self._uids.get(name), dry_run)

    async def _pool(self, name: str) -> Pool:
        deployment = await asked(
            f"cannot read the Deployment {name}",
            self._apps.read_namespaced_deployment(name, self._namespace),
        )
        if deployment.metadata is None or deployment.spec is None:
            raise ScaleUnavailable(f"the Deployment {name} has no spec")
        if deployment.metadata.uid:
            self._uids[name] = deployment.metadata.uid
        replicas = deployment.spec.replicas
        if replicas is not None and replicas < 0:
            raise ScaleUnavailable(f"the Deployment {name} has {replicas} replicas")
        ready = deployment.status.ready_replicas if deployment.status else None
        return Pool(replicas=1 if replicas is None else replicas, ready=ready or 0)

    async def _scale(self, name: str, change: Change) -> V1Scale:
        """The scale; raises ScaleConflict where someone has changed it since the decision."""
        scale = await asked(
            f"cannot read the scale of {name}",
            self._apps.read_namespaced_deployment_scale(name, self._namespace),
        )
        replicas = (scale.spec.replicas if scale.spec else None) or 0
        if replicas != change.current:
            raise ScaleConflict(f"{name} has {replicas} replicas now, not {change.current}")
        return scale

    async def _write(self, name: str, scale: V1Scale, change: Change) -> None:
        version = scale.metadata.resource_version if scale.metadata else None
        if not version:
            raise ScaleUnavailable(f"the scale of {name} does not say which version it is")
        written = await asked(
            f"cannot scale {name}",
            self._apps.patch_namespaced_deployment_scale(
                name,
                self._namespace,
                {"metadata": {"resourceVersion": version}, "spec": {"replicas": change.wanted}},
                _content_type="application/merge-patch+json",
            ),
        )
        replicas = written.spec.replicas if written.spec else None
        if replicas != change.wanted:
            raise ScaleUnavailable(
                f"{name} has {replicas} replicas, and was to have {change.wanted}"
            )


def _selector(name: str, scale: V1Scale) -> str:
    selector = scale.status.selector if scale.status else None
    if not selector:
        raise ScaleUnavailable(f"the scale of {name} does not say how its pods are labelled")
    return str(selector)
