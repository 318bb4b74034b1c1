"""What the transfer service is told at its start."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from services.common.settings import ServiceSettings


class TransferSettings(ServiceSettings):
    """Flags and environment of the transfer service."""

    segment_dir: Path = Field(
        Path("/dev/shm"),
        description="directory of the shared-memory segments, a tmpfs that the workers share",
    )
    sweep_period_s: float = Field(
        0.25, gt=0, description="seconds between looks at expired leases and ended processes"
    )
    peer_transport: Literal["auto", "grpc", "nixl"] = Field(
        "auto",
        description="how to read other hosts' blobs: by NIXL where both sides have it (auto), "
        "as a gRPC byte stream (grpc), or by NIXL alone (nixl). NIXL encrypts nothing: with "
        "--tls-ca auto is grpc",
    )
    peer_segment_bytes: int = Field(
        256 << 20, gt=0, description="shared memory for other hosts' blobs; taken at the first one"
    )
    peer_silence_s: float = Field(
        1.5, gt=0, description="seconds of silence after which another host is given up"
    )
    peer_read_s: float = Field(
        30.0, gt=0, description="seconds that a reader without a deadline waits for another host"
    )
