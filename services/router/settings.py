"""Settings of the router process."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from services.common.settings import FleetSettings
from services.router.limits import LimitTable, parse_limits
from services.router.request import ClassTargets

MAX_WEIGHT = 1e6
"""Of a tenant. Shares of the fleet, and one divided by them, stay numbers."""


class RouterSettings(FleetSettings):
    """What the router is told."""

    address: str = Field("127.0.0.1:7600", description="host:port to listen on")
    router_id: str = Field("", description="id of this router in the fleet; empty: a new one")
    model: str = Field(description="model whose tokenizer to load: a directory or a .gguf file")
    model_name: str = Field(
        "", description="name under which the model is served; empty: as workers report it"
    )
    chat_template: Path | None = Field(
        None, description="file of a Jinja chat template to take instead of the model's own"
    )
    disaggregation: Literal["auto", "always", "never"] = Field(
        "auto",
        description="who computes prompts; always: prefill workers; never: decode workers; auto: "
        "prefill workers, or the decode worker where that is no slower and its batch allows it",
    )

    ttft_interactive_s: float = Field(
        2.0, gt=0, description="time to first token of interactive requests that give no target"
    )
    itl_interactive_s: float = Field(
        0.2, gt=0, description="inter-token latency of interactive requests that give no target"
    )
    ttft_batch_s: float = Field(
        60.0, gt=0, description="time to first token of batch requests that give no target"
    )
    itl_batch_s: float = Field(
        2.0, gt=0, description="inter-token latency of batch requests that give no target"
    )
    ttft_slack_s: float = Field(
        0.0,
        ge=0,
        description="by how much a predicted time to first token may miss its target before the "
        "request is refused",
    )
    tenant_weights: str = Field(
        "", description="tenants' parts of the fleet, as in a=2,b=0.5; 1 where none is given"
    )

    tls_client_certs: bool = Field(
        True,
        description="with --tls-ca, take only clients with a certificate; their API keys alone are "
        "enough where this is off",
    )
    api_keys: str = Field(
        "",
        description="file of API keys, read again when it changes; its lines are `SHA256 TENANT` "
        "or `SHA256 TENANT operator`, as `baton key` prints them. In the environment the lines "
        "themselves will do. Empty: anyone may do anything",
    )
    tenant_limits: str = Field(
        "",
        description="what tenants may have, as in `acme=10/s burst:20 streams:4, *=2/s`: requests "
        "a second over all routers, how many may come at once, and how many may be in progress; "
        "* is each tenant that is not named",
    )

    default_max_tokens: int = Field(256, ge=1, description="max_tokens of requests that set none")
    max_running: int = Field(
        1024, ge=1, description="requests in progress at once, waiting ones included"
    )
    max_waiting: int = Field(512, ge=1, description="requests that may wait for a turn, fleet-wide")

    lease_ttl_s: float = Field(
        6.0,
        gt=0,
        description="how long claims, and handoffs' blobs, are held after their router's last word",
    )
    prefill_timeout_s: float = Field(
        300.0, gt=0, description="longest time that computing a prompt may take"
    )
    decode_stall_s: float = Field(
        60.0, gt=0, description="longest silence of a decode worker between two tokens"
    )
    prefill_attempts: int = Field(4, ge=1, description="most prefill workers tried for a request")
    decode_attempts: int = Field(6, ge=1, description="most decode workers tried for a request")
    room_s: float = Field(
        60.0,
        gt=0,
        description="longest wait of a choice for a decode worker while none of its request runs",
    )
    retry_ratio: float = Field(
        0.2, ge=0, description="retries before the first token for each request, in the long run"
    )

    record: Path | None = Field(
        None,
        description="file to append a line of JSON to for each request: what it was, what "
        "was decided, predicted and measured; no tokens and no text. The simulator replays it",
    )
    redis_wait_s: float = Field(
        5.0,
        ge=0,
        description="longest time to wait for what Redis knows of the fleet, before serving "
        "without",
    )
    grace_s: float = Field(
        600.0, ge=0, description="longest time to finish running requests after SIGTERM"
    )

    @field_validator("tenant_weights")
    @classmethod
    def _weights_are_numbers(cls, value: str) -> str:
        _weights(value)
        return value

    @field_validator("tenant_limits")
    @classmethod
    def _limits_are_limits(cls, value: str) -> str:
        parse_limits(value)
        return value

    @property
    def targets(self) -> ClassTargets:
        """Latencies of requests that ask for none."""
        return ClassTargets(
            interactive_ttft_s=self.ttft_interactive_s,
            interactive_itl_s=self.itl_interactive_s,
            batch_ttft_s=self.ttft_batch_s,
            batch_itl_s=self.itl_batch_s,
        )

    @property
    def limits(self) -> LimitTable:
        """`tenant_limits` by tenant."""
        return parse_limits(self.tenant_limits)

    @property
    def weights(self) -> dict[str, float]:
        """`tenant_weights` by tenant."""
        return _weights(self.tenant_weights)


def _weights(text: str) -> dict[str, float]:
    """Raises ValueError where a part is not a name, an equals sign and a weight."""
    weights: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        tenant, _, number = part.partition("=")
        try:
            weights[tenant.strip()] = weight = float(number)
        except ValueError:
            raise ValueError(f"{part!r} is not of the form tenant=weight") from None
        if not (tenant.strip() and 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT):
            raise ValueError(
                f"{part!r} must give a tenant a weight from {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}"
            )
    return weights
