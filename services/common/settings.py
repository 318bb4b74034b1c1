"""Settings of a service process: command-line flags, or BATON_* environment variables.

Each service subclasses `ServiceSettings` in its own `settings.py`; its `__main__` reads them
once and passes the frozen object on. Nothing reads the environment later.
"""

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


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
    advertise: str = Field("", description="host:port under which others reach it; empty: as bound")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="least that is logged"
    )
    ready_file: str = Field("", description="file to write the bound address into, once ready")


class FleetSettings(ServiceSettings):
    """What a process is told that talks to Redis."""

    redis: str = Field("redis://127.0.0.1:6379/0", description="URL of Redis, or unix:///path")
    fleet: str = Field("default", description="name of the fleet: all its keys share one hash tag")
