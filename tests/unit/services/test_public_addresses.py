"""No process serves plain text to other machines unless it was told to: it does not even start."""

import asyncio

import pytest

from baton.policy.fleet import Role
from services.decode.settings import DecodeSettings
from services.gateway import __main__ as gateway
from services.gateway.settings import GatewaySettings
from services.prefill.settings import PrefillSettings
from services.router import __main__ as router
from services.router.settings import RouterSettings
from services.transfer import server as transfer
from services.transfer.settings import TransferSettings
from services.worker.assembly import run_worker


def serve(kind, **values):
    """A process's main part."""
    stop = asyncio.Event()
    settings = kind(_cli_parse_args=[], **values)
    if kind is RouterSettings:
        return router.serve(settings, stop)
    if kind is GatewaySettings:
        return gateway.serve(settings, stop)
    if kind is TransferSettings:
        return transfer.start(settings)
    role = Role.PREFILL if kind is PrefillSettings else Role.DECODE
    return run_worker(settings, role, [], stop)


@pytest.mark.parametrize(
    "kind", [RouterSettings, GatewaySettings, TransferSettings, PrefillSettings, DecodeSettings]
)
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"address": "0.0.0.0:0"}, r"0\.0\.0\.0:0 can be reached .*--insecure"),
        ({"tls_ca": "/absent.pem"}, r"--tls-ca|/absent\.pem"),
    ],
)
async def test_it_does_not_start(kind, wrong, told):
    model = {"model": "/no/model"} if kind not in (GatewaySettings, TransferSettings) else {}
    with pytest.raises(OSError, match=told) as raised:
        await serve(kind, **model, **wrong)
    assert "\n" not in str(raised.value)


async def test_nor_does_a_router_with_broken_keys():
    with pytest.raises(OSError, match="--api-keys: line 1"):
        await serve(RouterSettings, model="/no/model", api_keys="nonsense\nnonsense")


@pytest.mark.parametrize("limits", ["a", "a=fast", "a=1/s,a=2/s"])
def test_nor_with_limits_that_are_none(limits):
    with pytest.raises(ValueError, match="tenant_limits"):
        RouterSettings(_cli_parse_args=[], model="/m", tenant_limits=limits)
