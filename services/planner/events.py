"""Decisions as Kubernetes events on the Deployments that they are about: `kubectl describe`
shows them."""

import logging
import secrets

from kubernetes.aio.client import (
    ApiClient,
    EventsV1Api,
    EventsV1Event,
    V1ObjectMeta,
    V1ObjectReference,
)

from services.planner.decision import Change
from services.planner.kubernetes_api import asked, now
from services.planner.scaler import ScaleError

log = logging.getLogger(__name__)

_CONTROLLER = "baton.dev/planner"
_MAX_NOTE_BYTES = 1000
"""The API takes 1 kB."""
_MAX_INSTANCE = 128


class Events:
    """Writes events. Never raises: one that is lost is logged."""

    def __init__(self, api: ApiClient, namespace: str, reporter: str) -> None:
        """`reporter`: the pod that they are from."""
        self._events = EventsV1Api(api)
        self._namespace = namespace
        self._reporter = reporter[:_MAX_INSTANCE]

    async def tell(self, change: Change, deployment: str, uid: str | None, dry_run: bool) -> None:
        """An event on the Deployment. Without its uid, `kubectl describe` does not find it."""
        event = EventsV1Event(
            metadata=V1ObjectMeta(
                name=f"{deployment[:200]}.{secrets.token_hex(8)}", namespace=self._namespace
            ),
            event_time=now(),
            type="Normal",
            reason=_reason(change, dry_run),
            action="Scale",
            note=_note(change),
            regarding=V1ObjectReference(
                api_version="apps/v1",
                kind="Deployment",
                name=deployment,
                namespace=self._namespace,
                uid=uid,
            ),
            reporting_controller=_CONTROLLER,
            reporting_instance=self._reporter,
        )
        try:
            await asked(
                f"cannot write an event on {deployment}",
                self._events.create_namespaced_event(self._namespace, event),
            )
        except ScaleError as error:
            log.warning("%s", error)


def _reason(change: Change, dry_run: bool) -> str:
    way = change.direction.title()
    return f"WouldScale{way}" if dry_run else f"Scaled{way}"


def _note(change: Change) -> str:
    text = f"{change.cause.value}: {change.why}"
    return text.encode()[:_MAX_NOTE_BYTES].decode(errors="ignore")
