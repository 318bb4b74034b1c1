"""Settings of a prefill worker."""

from pydantic import Field

from services.worker.settings import WorkerSettings


class PrefillSettings(WorkerSettings):
    """What a prefill worker is told."""

    publish_seconds: float = Field(
        3.0, gt=0, description="longest wait for KV to be published before the rest is left out"
    )
