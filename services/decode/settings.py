"""Settings of a decode worker."""

from pydantic import Field

from services.worker.settings import WorkerSettings


class DecodeSettings(WorkerSettings):
    """What a decode worker is told."""

    max_step_tokens: int = Field(
        128,
        ge=1,
        description="most tokens computed in one step; prompts are computed in what the running "
        "sequences leave of it, so it bounds how long a prompt holds them up",
    )
