"""Settings of an engine worker, as flags or BATON_* variables; roles add their own defaults."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from baton.addresses import bracketed
from baton.policy.fleet import GROWTH_TOKENS
from services.common.fleet.registry import HEARTBEAT_S
from services.common.settings import FleetSettings

MEBIBYTE = 1024 * 1024


class WorkerSettings(FleetSettings):
    """What prefill and decode workers are both told."""

    model: Path = Field(description="Hugging Face model directory, or .gguf file")
    served_name: str = Field("", description="name of the model; empty: its file's or directory's")
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="number format of weights and KV"
    )
    threads: int = Field(1, ge=1, description="compute threads of the engine")
    cores: str = Field(
        "", description="CPUs to pin the engine's thread to, such as `0,1`; empty: any"
    )
    kv_bytes: int = Field(512 * MEBIBYTE, gt=0, description="bytes of the engine's KV pools")
    block_size: int = Field(16, ge=1, le=1024, description="tokens of one KV block")
    checkpoint_blocks: int = Field(
        32, ge=1, description="window blocks are published at every so many blocks of a prompt"
    )
    max_sequences: int = Field(32, ge=1, description="most sequences in one step")
    max_step_tokens: int = Field(
        256,
        ge=1,
        description="most tokens computed in one step; prompts are computed in what the running "
        "sequences leave of it, so it bounds how long a prompt holds them up",
    )
    transfer: str = Field("127.0.0.1:7610", description="host:port of this host's transfer service")
    segment_bytes: int = Field(
        256 * MEBIBYTE, gt=0, description="shared memory to publish KV blobs in"
    )
    worker_id: str = Field("", description="id that is stable over restarts; empty: a fresh one")
    progress_file: str = Field(
        "", description="file to keep `BYTES_DONE BYTES_TOTAL` in while the model loads"
    )
    heartbeat_seconds: float = Field(
        HEARTBEAT_S, gt=0, description="period of the fleet's heartbeat"
    )
    fetch_seconds: float = Field(
        5.0, gt=0, description="longest wait for cached KV before it is computed instead"
    )
    publish_seconds: float = Field(
        3.0, gt=0, description="longest wait for KV to be published before the rest is left out"
    )
    growth_tokens: int = Field(
        GROWTH_TOKENS,
        ge=0,
        description="output tokens that a sequence gets KV room for at first and each time that "
        "it outgrows it; 0: room for all of its tokens at once",
    )
    warmup_seconds: float = Field(
        2.0, ge=0, description="longest time to measure steps before the first request; 0: none"
    )
    measure_peaks: bool = Field(
        True, description="measure at the start what the device can do, in about 0.2 s"
    )
    canary_ratio: float = Field(
        0.001, ge=0, le=1, description="part of the handoffs that are computed again to compare"
    )
    lookahead_steps: float = Field(
        2.0, gt=0, description="full steps of prompt work that the worker wants to have ahead"
    )
    stall_s: float = Field(
        120.0,
        gt=0,
        description="seconds after which a worker whose engine is still at one step counts as dead",
    )
    drain_seconds: float = Field(
        30.0,
        ge=0,
        description="how long prompts may go on, and KV waits to be read, after SIGTERM",
    )

    @field_validator("transfer")
    @classmethod
    def _transfer_has_brackets(cls, value: str) -> str:
        return bracketed(value)

    @field_validator("cores")
    @classmethod
    def _cores_are_numbers(cls, value: str) -> str:
        for part in filter(None, value.split(",")):
            if not part.strip().isdecimal():
                raise ValueError(f"`{part}` is not the number of a CPU")
        return value

    @property
    def core_set(self) -> set[int] | None:
        """CPUs for the engine's thread; None: any."""
        return {int(part) for part in self.cores.split(",") if part.strip()} or None

    @property
    def model_name(self) -> str:
        """Name under which the model is served."""
        return self.served_name or self.model.stem
