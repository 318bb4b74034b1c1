"""How a client proves who it is to a router, and whom it believes.

    Client("baton.example:7600", api_key=key, tls=Tls(ca="ca.pem"))

An API key crosses the network in plain text only if that was asked for (`insecure`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from baton import errors
from baton._calls import CHANNEL_OPTIONS, to_target
from baton._checks import to_metadata

_AUTHORIZATION = "authorization"
_SCHEMES = ("ipv4:", "ipv6:", "dns:///", "dns:")


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for calls over TLS."""

    ca: str | Path | None = None
    """Whose signature a router's certificate must have; None: any that the system trusts."""
    cert: str | Path | None = None
    """Shown to routers that want a certificate; with `key`."""
    key: str | Path | None = None
    server_name: str = ""
    """Name that the router's certificate must have; empty: the address's."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises InvalidRequest where a file can't be read."""
        if (self.cert is None) != (self.key is None):
            raise errors.InvalidRequest("tls", "cert and key only work together")
        ca, key, cert = (_read(name, getattr(self, name)) for name in ("ca", "key", "cert"))
        return grpc.ssl_channel_credentials(ca, key, cert)

    @property
    def options(self) -> list[tuple[str, str]]:
        """What the credentials do not say."""
        name = self.server_name
        return [("grpc.ssl_target_name_override", name)] if name else []


@dataclass(frozen=True, slots=True)
class Access:
    """One router, or several, as a client gets at them."""

    target: str
    credentials: grpc.ChannelCredentials | None
    """None: plain text."""
    options: tuple[tuple[str, Any], ...]
    authorization: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, address: str, api_key: str | None, tls: Tls | None, insecure: bool) -> "Access":
        """Raises InvalidRequest where a file can't be read, or the key is none or would cross the
        network in plain text."""
        if api_key is not None:
            _check_key(api_key)
            if tls is None and not insecure and not is_loopback(address):
                raise errors.InvalidRequest(
                    "api_key",
                    f"would go to {address} in plain text: use TLS, or say that the network can be "
                    "trusted (insecure)",
                )
        return cls(
            to_target(address),
            tls.credentials() if tls else None,
            (*CHANNEL_OPTIONS, *(tls.options if tls else ())),
            ((_AUTHORIZATION, f"Bearer {api_key}"),) if api_key is not None else (),
        )

    def channel(self) -> grpc.Channel:
        """A channel for threads."""
        if self.credentials is None:
            return grpc.insecure_channel(self.target, options=self.options)
        return grpc.secure_channel(self.target, self.credentials, options=self.options)

    def aio_channel(self) -> grpc.aio.Channel:
        """A channel for asyncio."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.target, options=self.options)
        return grpc.aio.secure_channel(self.target, self.credentials, options=self.options)

    def metadata(self, given: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
        """What goes with a call: what was given, and the key unless that is among it."""
        metadata = to_metadata(given)
        if any(name == _AUTHORIZATION for name, _ in metadata):
            return metadata
        return (*metadata, *self.authorization)


def is_loopback(address: str) -> bool:
    """Whether only this machine is at `address`: host:port, several by comma, or a gRPC target."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    for scheme in _SCHEMES:
        address = address.removeprefix(scheme)
    return all(_is_loopback(place.strip()) for place in address.split(","))


def _is_loopback(place: str) -> bool:
    host = place.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _check_key(api_key: str) -> None:
    if not isinstance(api_key, str):
        raise TypeError(f"api_key: expected a string, got {type(api_key).__name__}")
    if not api_key or not all("!" <= letter <= "~" for letter in api_key):
        raise errors.InvalidRequest("api_key", "is empty or has characters that no key has")


def _read(name: str, path: str | Path | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise errors.InvalidRequest(f"tls.{name}", f"{path}: {error.strerror}") from error
