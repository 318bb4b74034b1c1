"""The options of every command that calls a router, and the client that they make."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from baton._calls import DEFAULT_ADDRESS
from baton.client import Client
from baton.tls import Tls

R = TypeVar("R")
_PARAMETER = "connection"


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a router is, and how to get in."""

    address: str = DEFAULT_ADDRESS
    api_key: str | None = None
    tls: Tls | None = None
    insecure: bool = False

    def client(self) -> Client:
        """A client of the router. Raises InvalidRequest where it can't be made."""
        return Client(self.address, api_key=self.api_key, tls=self.tls, insecure=self.insecure)


def connects(command: Callable[..., R]) -> Callable[..., R]:
    """Gives the command the options of `_connection` in place of its parameter `connection`."""
    own = inspect.signature(command)
    added = inspect.signature(_connection)
    kept = [one for one in own.parameters.values() if one.name != _PARAMETER]

    @functools.wraps(command)
    def run(**given: Any) -> R:
        options = {name: given.pop(name) for name in added.parameters}
        return command(**given, connection=_connection(**options))

    signature = own.replace(parameters=[*kept, *added.parameters.values()])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    return run


def _connection(
    *,
    address: Annotated[str, typer.Option(help="host:port of a router.")] = DEFAULT_ADDRESS,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="BATON_API_KEY",
            help="API key, where the router wants one; other users see it in the command line.",
        ),
    ] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Call over TLS; the other --tls options do so too.")
    ] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            envvar="BATON_TLS_CA",
            help="CA that signed the router's certificate; else the system's.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(envvar="BATON_TLS_CERT", help="Certificate to show to the router."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(envvar="BATON_TLS_KEY", help="The certificate's key.")
    ] = None,
    tls_server_name: Annotated[
        str,
        typer.Option(
            envvar="BATON_TLS_SERVER_NAME",
            help="Name in the router's certificate, where it is not the address.",
        ),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Send the API key in plain text to another machine."),
    ] = False,
) -> Connection:
    secure = tls or tls_server_name or tls_ca or tls_cert or tls_key
    how = Tls(tls_ca, tls_cert, tls_key, tls_server_name) if secure else None
    return Connection(address, api_key, how, insecure)
