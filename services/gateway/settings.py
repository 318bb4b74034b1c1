"""Settings of the gateway process."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from baton.addresses import to_target
from services.common.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    """What the gateway is told."""

    address: str = Field("127.0.0.1:8000", description="host:port to listen on")
    router: str = Field(
        "127.0.0.1:7600",
        description="routers to use in turn: host:port, several by comma, or any gRPC target",
    )
    https_cert: Path | None = Field(
        None, description="PEM file of the certificate to serve HTTPS with, and of those behind it"
    )
    https_key: Path | None = Field(None, description="PEM file of that certificate's private key")
    max_body_bytes: int = Field(
        16 * 1024 * 1024, ge=1024, description="largest body of a request that is read"
    )
    router_wait_s: float = Field(
        30.0, gt=0, description="longest wait for a router's answer to anything but a generation"
    )
    grace_s: float = Field(
        600.0, ge=0, description="longest time to finish running requests after SIGTERM"
    )
    ui: Literal["auto", "on", "off"] = Field(
        "auto", description="whether to serve the page at /ui; auto: where the address is loopback"
    )

    @field_validator("router")
    @classmethod
    def _routers_are_a_target(cls, value: str) -> str:
        to_target(value)
        return value
