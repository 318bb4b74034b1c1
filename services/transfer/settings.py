"""What the transfer service is told at its start."""

from pathlib import Path

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
