"""Settings of the router process."""

from pydantic import Field

from services.common.settings import FleetSettings


class RouterSettings(FleetSettings):
    """What the router is told."""

    address: str = Field("127.0.0.1:7600", description="host:port to listen on")
    router_id: str = Field("", description="id of this router in the fleet; empty: a new one")
    model: str = Field(description="model whose tokenizer to load: a directory or a .gguf file")
    model_name: str = Field(
        "", description="name under which the model is served; empty: as workers report it"
    )
    aggregated: bool = Field(False, description="send every prompt straight to decode workers")

    default_max_tokens: int = Field(256, ge=1, description="max_tokens of requests that set none")
    max_running: int = Field(
        1024, ge=1, description="requests in progress at once, waiting ones included"
    )
    max_waiting: int = Field(512, ge=1, description="requests that may wait for a turn, fleet-wide")

    lease_ttl_s: float = Field(
        6.0, gt=0, description="how long a handoff's blobs are held after their router's last word"
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

    redis_wait_s: float = Field(
        5.0, ge=0, description="longest time to wait for Redis before serving without it"
    )
    grace_s: float = Field(
        600.0, ge=0, description="longest time to finish running requests after SIGTERM"
    )
