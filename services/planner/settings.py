"""Settings of the planner process."""

from dataclasses import fields
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from services.common.settings import FleetSettings
from services.planner.config import PlannerConfig

_NEEDED = {
    "kubernetes": ("namespace", "prefill_deployment", "decode_deployment", "lease"),
    "local": ("replicas_file", "state_file"),
}
"""What each orchestrator is reached by."""
_PLAIN = PlannerConfig()


class PlannerSettings(FleetSettings):
    """What the planner is told."""

    address: str = Field("127.0.0.1:7620", description="host:port to answer health checks at")
    scaler: Literal["kubernetes", "local"] = Field(
        "local", description="who starts and stops workers: Kubernetes, or `baton up` on this host"
    )
    dry_run: bool = Field(False, description="only say what would be done, and why")

    namespace: str = Field("", description="kubernetes: namespace of all that follows")
    prefill_deployment: str = Field("", description="kubernetes: Deployment of prefill workers")
    decode_deployment: str = Field("", description="kubernetes: Deployment of decode workers")
    lease: str = Field("", description="kubernetes: Lease by which one of several planners acts")
    identity: str = Field(
        "", description="kubernetes: this planner's name in the Lease, its alone; empty: a new one"
    )
    kubeconfig: Path | None = Field(
        None, description="kubernetes: kubeconfig file; none: the service account of this pod"
    )
    replicas_file: Path | None = Field(
        None, description="local: file that says how many workers there are to be"
    )
    state_file: Path | None = Field(None, description="local: file that says what there is")

    min_prefill: int = Field(_PLAIN.min_prefill, ge=1, description="fewest prefill workers")
    max_prefill: int = Field(_PLAIN.max_prefill, ge=1, description="most prefill workers")
    min_decode: int = Field(_PLAIN.min_decode, ge=1, description="fewest decode workers")
    max_decode: int = Field(_PLAIN.max_decode, ge=1, description="most decode workers")
    gpus_per_prefill: int = Field(
        _PLAIN.gpus_per_prefill, ge=0, description="GPUs of one prefill worker"
    )
    gpus_per_decode: int = Field(
        _PLAIN.gpus_per_decode, ge=0, description="GPUs of one decode worker"
    )
    gpu_budget: int = Field(
        _PLAIN.gpu_budget,
        ge=0,
        description="GPUs of both pools together; 0: as many as the bounds allow",
    )
    ttft_target_s: float = Field(
        _PLAIN.ttft_target_s, gt=0, description="time to first token that the pools are sized for"
    )
    itl_target_s: float = Field(
        _PLAIN.itl_target_s, gt=0, description="inter-token latency that the pools are sized for"
    )
    attainment: float = Field(
        _PLAIN.attainment,
        ge=0.5,
        lt=1,
        description="share of the requests that is to hold its targets",
    )
    headroom: float = Field(
        _PLAIN.headroom,
        ge=1,
        description="by how much more load than foreseen the pools are to be enough for",
    )
    react_s: float = Field(
        _PLAIN.react_s, gt=0, description="between looks at queues and missed targets"
    )
    period_s: float = Field(_PLAIN.period_s, gt=0, description="between two sizings from the load")
    bucket_s: float = Field(
        _PLAIN.bucket_s, gt=0, description="length of the pieces that load is kept in"
    )
    season_s: float = Field(_PLAIN.season_s, gt=0, description="what the load repeats after")
    cold_start_s: float = Field(
        _PLAIN.cold_start_s,
        ge=0,
        description="from asking for a worker until it serves, until one was measured",
    )
    scale_down_after_s: float = Field(
        _PLAIN.scale_down_after_s,
        ge=0,
        description="how long fewer workers must be enough before one is stopped",
    )
    forecast: bool = Field(
        _PLAIN.forecast,
        description="size for the load that is foreseen, not for the present one alone",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name in _NEEDED[self.scaler]:
            if not getattr(self, name):
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"--scaler={self.scaler} needs {flag}")
        self.config  # noqa: B018 - raises where numbers contradict each other
        return self

    @property
    def config(self) -> PlannerConfig:
        """What decisions are made by."""
        return PlannerConfig(**{one.name: getattr(self, one.name) for one in fields(PlannerConfig)})
