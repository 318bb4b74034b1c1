"""The numbers that a planner decides by."""

from collections.abc import Mapping
from dataclasses import dataclass

from baton.policy.fleet import Role


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """Bounds, targets and times. Raises ValueError where they contradict each other."""

    min_prefill: int = 1
    max_prefill: int = 8
    min_decode: int = 1
    max_decode: int = 8
    gpus_per_prefill: int = 1
    gpus_per_decode: int = 1
    gpu_budget: int = 0
    """GPUs of both pools together; 0: as many as the bounds allow."""
    ttft_target_s: float = 2.0
    itl_target_s: float = 0.2
    attainment: float = 0.95
    """Share of the requests that is to hold its targets."""
    headroom: float = 1.2
    """By how much more load than foreseen the pools are to be enough for."""
    react_s: float = 5.0
    """Between two looks at queues and missed targets."""
    period_s: float = 60.0
    """Between two sizings from the load; also what recent attainment is counted over."""
    bucket_s: float = 300.0
    """Load is forecast in pieces of this length."""
    season_s: float = 86400.0
    """What the load repeats after."""
    cold_start_s: float = 120.0
    """From asking for a worker until it serves, as long as none was measured."""
    scale_down_after_s: float = 300.0
    """How long fewer workers must have been enough before one is stopped."""
    forecast: bool = True
    """Whether to size for the load that is foreseen, not for the present one alone."""

    def __post_init__(self) -> None:
        for role in Role:
            if not 1 <= self.least(role) <= self.most(role):
                raise ValueError(
                    f"min_{role.value} is {self.least(role)} and max_{role.value} is "
                    f"{self.most(role)}: at least 1, and no more than the maximum"
                )
            if self.gpus(role) < 0:
                raise ValueError(f"gpus_per_{role.value} is negative")
        least = sum(self.gpus(role) * self.least(role) for role in Role)
        if self.gpu_budget < 0 or 0 < self.gpu_budget < least:
            raise ValueError(
                f"gpu_budget is {self.gpu_budget}, the least workers need {least} (0: no budget)"
            )
        for name in ("ttft_target_s", "itl_target_s", "react_s", "period_s", "bucket_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is not above 0")
        for name in ("cold_start_s", "scale_down_after_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is negative")
        if self.period_s < self.react_s:
            raise ValueError("period_s is shorter than react_s")
        if self.season_s < 2 * self.bucket_s:
            raise ValueError("season_s is shorter than two bucket_s")
        if not 0.5 <= self.attainment < 1:
            raise ValueError("attainment is not from 0.5 to below 1")
        if self.headroom < 1:
            raise ValueError("headroom is below 1")

    def least(self, role: Role) -> int:
        """Fewest workers of a role."""
        return self.min_prefill if role is Role.PREFILL else self.min_decode

    def most(self, role: Role) -> int:
        """Most workers of a role."""
        return self.max_prefill if role is Role.PREFILL else self.max_decode

    def gpus(self, role: Role) -> int:
        """GPUs of one worker of a role."""
        return self.gpus_per_prefill if role is Role.PREFILL else self.gpus_per_decode

    def fits(self, counts: Mapping[Role, int]) -> bool:
        """Whether the budget has the GPUs for so many workers of each role."""
        gpus = sum(self.gpus(role) * count for role, count in counts.items())
        return self.gpu_budget == 0 or gpus <= self.gpu_budget
