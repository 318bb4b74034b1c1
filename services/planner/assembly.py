"""Puts a planner together: its orchestrator, and who of several acts."""

import asyncio
import importlib
from contextlib import AsyncExitStack
from pathlib import Path

from baton import naming
from baton.policy.fleet import Role
from services.planner.leadership import Alone, Leadership
from services.planner.local_scaler import LocalScaler
from services.planner.scaler import Scaler
from services.planner.settings import PlannerSettings


async def orchestrator(
    settings: PlannerSettings, open_parts: AsyncExitStack
) -> tuple[Scaler, Leadership]:
    """Who starts and stops workers, and whether this planner may tell it to. Closed with
    `open_parts`. Raises OSError where it can't be reached by what the settings say."""
    if settings.scaler == "kubernetes":
        return await _kubernetes(settings, open_parts)
    return LocalScaler(_file(settings.replicas_file), _file(settings.state_file)), Alone()


async def _kubernetes(
    settings: PlannerSettings, open_parts: AsyncExitStack
) -> tuple[Scaler, Leadership]:
    # The client takes seconds to import: a planner of `baton up` need not wait for it, and the
    # event loop of the others must turn meanwhile.
    await asyncio.to_thread(importlib.import_module, "services.planner.lease")
    from services.planner.kubernetes_api import connect
    from services.planner.kubernetes_scaler import KubernetesScaler
    from services.planner.lease import LeaseElection

    identity = settings.identity or naming.new_id("planner")
    api = await connect(settings.kubeconfig)
    open_parts.push_async_callback(api.close)
    deployments = {
        Role.PREFILL: settings.prefill_deployment,
        Role.DECODE: settings.decode_deployment,
    }
    scaler = KubernetesScaler(api, settings.namespace, deployments, identity)
    election = LeaseElection(api, settings.namespace, settings.lease, identity)
    open_parts.push_async_callback(election.close)
    return scaler, election


def _file(path: Path | None) -> Path:
    assert path is not None  # the settings refuse it
    return path
