"""Calls of the Kubernetes API: each answers or raises a ScaleError within seconds."""

import asyncio
import json
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException, OpenApiException

from services.planner.scaler import ScaleConflict, ScaleDenied, ScaleError, ScaleUnavailable

REQUEST_S = 5.0
"""Longest time that an answer is waited for."""
_PASSING = {408, 410, 425, 429}
"""Of 400 to 499, what is no refusal."""
_MAX_MESSAGE = 300

T = TypeVar("T")


class ScaleMissing(ScaleUnavailable):
    """There is no such object (now)."""


async def connect(kubeconfig: Path | None) -> ApiClient:
    """A client of the cluster that this pod is in, or of the kubeconfig's current context; the
    caller closes it. Raises OSError where there is none."""
    settings = Configuration()
    settings.retries = None  # the loop tries again, and says why
    try:
        if kubeconfig is None:
            await asyncio.to_thread(config.load_incluster_config, settings)
        else:
            await config.load_kube_config(str(kubeconfig), client_configuration=settings)
        return await asyncio.to_thread(ApiClient, settings)
    except Exception as error:  # the client raises anything for a wrong file
        where = kubeconfig or "this pod's service account"
        raise OSError(f"cannot reach Kubernetes by {where}: {_line(error)}") from error


async def asked(what: str, call: Coroutine[Any, Any, T], within_s: float = REQUEST_S) -> T:
    """The call's answer. `what` begins the sentence of the error that it may raise instead."""
    try:
        async with asyncio.timeout(within_s):
            answer = await call
    except ApiException as error:
        raise _judged(what, error) from error
    except TimeoutError as error:
        raise ScaleUnavailable(f"{what}: no answer within {within_s:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise ScaleUnavailable(f"{what}: {str(error) or type(error).__name__}") from error
    except (config.ConfigException, OpenApiException, ValueError, RecursionError) as error:
        raise ScaleUnavailable(f"{what}: not an answer of Kubernetes: {_line(error)}") from error
    if answer is None:
        raise ScaleUnavailable(f"{what}: not an answer of Kubernetes: nothing")
    return answer


def now() -> datetime:
    """The time, as `micro_time`."""
    return micro_time(datetime.now(UTC))


def micro_time(moment: datetime) -> datetime:
    """One that Kubernetes takes as a MicroTime: the client leaves out a fraction that is zero,
    and the API refuses such times without one."""
    return moment.replace(microsecond=moment.microsecond or 1)


def _judged(what: str, error: ApiException) -> ScaleError:
    status = error.status or 0
    told = f"{what}: {status} {_message(error)}"
    if status == 404:
        return ScaleMissing(told)
    if status == 409:
        return ScaleConflict(told)
    if 400 <= status < 500 and status not in _PASSING:
        return ScaleDenied(told)
    return ScaleUnavailable(told)


def _message(error: ApiException) -> str:
    """What the API says is wrong; proxies before it answer with anything."""
    try:
        message = json.loads(error.body or "")["message"]
    except (ValueError, TypeError, KeyError):
        message = error.reason or ""
    return _line(message)


def _line(problem: object) -> str:
    return " ".join(str(problem).split())[:_MAX_MESSAGE]
