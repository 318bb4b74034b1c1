"""The slow loop: what the present load and the one that is foreseen need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from baton.policy.fleet import Role
from baton.policy.sizing import Need, Profile, Targets, Traffic, decode_need, prefill_need
from services.planner.config import PlannerConfig
from services.planner.foresight import Foreseen

BAND = 0.05
"""A pool of the size that is needed at so much more or less load is left as it is."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Workers that a role needs."""

    needed: int
    least: int
    """Fewer are too few beyond doubt."""
    most: int
    """More are too many beyond doubt."""
    why: str

    def plus(self, extra: int) -> "Estimate":
        """More, since it was too few before."""
        if extra == 0:
            return self
        return replace(
            self,
            needed=self.needed + extra,
            least=self.least + extra,
            most=self.most + extra,
            why=f"{self.why}, and {extra} more since that was too few before",
        )

    def near(self, current: int) -> int:
        """What is needed, but for differences that are in doubt."""
        return current if self.least <= current <= self.most else self.needed


def estimate(
    role: Role,
    present: Traffic,
    foreseen: Sequence[Foreseen],
    profile: Profile,
    config: PlannerConfig,
) -> Estimate:
    """What a role needs for the heaviest of the loads."""

    def need(traffic: Traffic, factor: float = 1.0) -> Need:
        return _need(role, traffic * (factor * config.headroom), profile, config)

    loads = [(need(present), present, "now")]
    loads += [
        (need(one.traffic), one.traffic, f"foreseen for {_clock(one.at_s)}") for one in foreseen
    ]
    heaviest, traffic, when = max(loads, key=lambda one: (one[0].workers, one[0].busy))
    return Estimate(
        heaviest.workers,
        need(traffic, 1 - BAND).workers,
        max(need(one, 1 + BAND).workers for _, one, _ in loads),
        _why(role, heaviest, traffic, when, config),
    )


def _need(role: Role, traffic: Traffic, profile: Profile, config: PlannerConfig) -> Need:
    targets = Targets(config.ttft_target_s, config.itl_target_s, config.attainment)
    if role is Role.PREFILL:
        return prefill_need(traffic, profile, targets)
    return decode_need(traffic, profile, targets)


def _why(role: Role, need: Need, traffic: Traffic, when: str, config: PlannerConfig) -> str:
    if need.workers == 0:
        return "nothing is asked for"
    if role is Role.PREFILL:
        load = f"{traffic.requests:.3g} requests/s of {traffic.mean_new_tokens:.0f} new tokens"
        target = f"first tokens within {config.ttft_target_s:g} s"
    else:
        load = (
            f"{traffic.output_tokens:.3g} output tokens/s at a mean context of "
            f"{traffic.mean_context:.0f}"
        )
        target = f"{need.batch} sequences a worker within {config.itl_target_s:g} s a token"
        if need.by_room:
            target = "the KV of those and of prompts that are computed"
    return (
        f"{load} ({when}) with {100 * (config.headroom - 1):.0f}% headroom keep "
        f"{need.busy:.2f} workers busy; {target} take {need.workers}"
    )


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M UTC")
