"""The gateway's certificates: HTTPS towards its clients, TLS towards the routers.

Clients' API keys pass through it, so neither side is plain text between machines unless
`--insecure` says that the network can be trusted.
"""

from typing import Any

from baton import errors
from baton.tls import Tls, is_loopback
from services.common.security import check_bind
from services.gateway.settings import GatewaySettings


def router_tls(settings: GatewaySettings) -> Tls | None:
    """For calls to routers; None: plain text. Raises OSError where that would leave the machine
    though nobody allowed it, or a file can't be read."""
    if settings.tls_ca is not None:
        tls = Tls(settings.tls_ca, settings.tls_cert, settings.tls_key, settings.tls_server_name)
        try:
            tls.credentials()
        except errors.InvalidRequest as error:
            raise OSError(error.message) from error
        return tls
    if not (settings.insecure or is_loopback(settings.router)):
        raise OSError(
            f"the routers at {settings.router} are other machines, and API keys and prompts would "
            "go there in plain text: give --tls-ca, or --insecure where the network can be trusted"
        )
    return None


def https_options(settings: GatewaySettings) -> dict[str, Any]:
    """Of the HTTP server; none: plain text. Raises OSError where that must not be served at the
    address, or half of a certificate is missing."""
    cert, key = settings.https_cert, settings.https_key
    if (cert is None) != (key is None):
        raise OSError("--https-cert and --https-key only work together")
    check_bind(
        settings.address,
        encrypted=cert is not None,
        insecure=settings.insecure,
        ways="--https-cert and --https-key",
    )
    return {"ssl_certfile": cert, "ssl_keyfile": key} if cert is not None else {}
