"""Settings of a service process: command-line flags, or BATON_* environment variables.

Each service subclasses `ServiceSettings` in its own `settings.py`; its `__main__` reads them
once and passes the frozen object on. Nothing reads the environment later.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from baton.addresses import bracketed


class ServiceSettings(BaseSettings):
    """What every service process is told."""

    model_config = SettingsConfigDict(
        env_prefix="BATON_",
        cli_parse_args=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        frozen=True,
        extra="ignore",
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    address: str = Field(
        "127.0.0.1:0", description="host:port to listen on; port 0 takes a free one"
    )
    advertise: str = Field(
        "",
        description="host:port under which others reach it, an IPv6 host with or without brackets; "
        "empty: as bound",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least that is logged"
    )
    log_format: Literal["auto", "json", "human"] = Field(
        "auto",
        description="how to log: json, a line of JSON for each record; human, lines for people; "
        "auto: human on a terminal",
    )
    process_name: str = Field(
        "",
        description="what logs, traces and metrics call this process; empty: its id, else its kind "
        "(in metrics its address)",
    )
    otlp_endpoint: str = Field(
        "",
        description="OpenTelemetry collector that spans go to, as host:port of OTLP over gRPC, or "
        "https://host:port; empty: none",
    )
    trace_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="part of the traces that begin here which is exported; who calls with a trace "
        "of its own decides for that. Whatever it is, processes remember their last spans",
    )
    ready_file: str = Field("", description="file to write the bound address into, once ready")
    metrics_address: str = Field(
        "",
        description="host:port to serve metrics for Prometheus at, over plain HTTP; port 0 takes "
        "a free one; empty: none",
    )
    tls_cert: Path | None = Field(
        None, description="PEM file of this process's certificate, and those between it and its CA"
    )
    tls_key: Path | None = Field(None, description="PEM file of the certificate's private key")
    tls_ca: Path | None = Field(
        None,
        description="PEM file of the fleet's CA: every process then shows a certificate that it "
        "signed, as a server and as a client",
    )
    tls_server_name: str = Field(
        "",
        description="name that the certificates of the fleet's servers have, verified in place of "
        "the address; empty: the address",
    )
    insecure: bool = Field(
        False, description="serve in plain text at an address that other machines reach"
    )

    @field_validator("advertise")
    @classmethod
    def _has_brackets(cls, value: str) -> str:
        return bracketed(value)


class FleetSettings(ServiceSettings):
    """What a process is told that talks to Redis."""

    redis: str = Field("redis://127.0.0.1:6379/0", description="URL of Redis, or unix:///path")
    fleet: str = Field("default", description="name of the fleet: all its keys share one hash tag")
