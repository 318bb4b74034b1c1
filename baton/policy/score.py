"""When a request's turn should come.

Pure functions; knows no queue. A score is a moment, and the lowest is next. It begins as the
deadline that the TTFT target sets, so it ages by itself: whoever comes later has a later one,
and nothing starves. Two clocks can move it. They are the queue's to keep, since all routers
share them, and advance by the work of each request that is queued under them:

    a tenant's clock runs at the rate at which its fair share of the fleet would serve its work.
    Where it is ahead of the present, the tenant has asked for more than its share, and its
    requests come later by so much.

    the batch clock runs at the rate at which the minimum share of batch requests would serve
    theirs: a batch request comes when its deadline says, or when that share would have reached
    it, whichever is earlier.
"""

from collections.abc import Mapping
from dataclasses import dataclass

PRIORITY_STEP_S = 1.0
"""How much earlier the deadline of the next higher priority is."""
MAX_PRIORITY = 10
STARTED_LEAD_S = 60.0
"""How much earlier a request is due whose client has seen tokens already."""
DEMOTION_S = 30.0
"""How much later a request comes once its target is lost: behind those that can hold theirs."""
BATCH_SHARE = 0.1
"""Least share of the fleet's prompt work that batch requests get while they wait."""
BATCH_CLOCK = "batch"


@dataclass(frozen=True, slots=True)
class Urgency:
    """What a request asks of the scheduler."""

    ttft_target_s: float | None = None
    """Time to first token to hold; None: that of its class."""
    itl_target_s: float | None = None
    """Inter-token latency to hold; None: that of its class."""
    priority: int = 0
    batch: bool = False
    tenant: str = ""
    """Empty: nobody's."""


@dataclass(frozen=True, slots=True)
class Order:
    """Where a request stands in the queue; seconds are from now."""

    due_s: float
    """Its deadline; negative when it is late."""
    clock: str = ""
    """Its tenant's clock. Empty: none."""
    clock_rate: float = 0.0
    """Seconds by which a second of its work advances the clock."""
    floor: str = ""
    """Clock of its minimum share. Empty: none."""
    floor_rate: float = 0.0
    late_s: float | None = None
    """When it is lost, and goes behind others, once. None: never."""


def order(
    *,
    ttft_target_s: float,
    waited_s: float = 0.0,
    priority: int = 0,
    started: bool = False,
    batch: bool = False,
    tenant: str = "",
    share: float = 1.0,
    workers: int = 1,
    grace_s: float = 0.0,
) -> Order:
    """Where a request stands.

    `waited_s` is how long ago it arrived; `started` is for one that goes on after its first
    token: it goes before all that have not begun, outside of all shares. `share` is its tenant's
    part of the fleet (`fair_share`), `workers` are those that compute prompts. `grace_s` after
    its deadline the target counts as lost; less what its own prompt takes, so that one that can't
    hold its target any more does not take the place of one that can, this is negative.
    """
    lead = PRIORITY_STEP_S * max(-MAX_PRIORITY, min(MAX_PRIORITY, priority))
    if started:
        return Order(-waited_s - lead - STARTED_LEAD_S)
    due = ttft_target_s - waited_s - lead
    capacity = max(1, workers)
    return Order(
        due_s=due,
        clock=f"{tenant}/{'batch' if batch else 'interactive'}" if tenant else "",
        clock_rate=1 / (capacity * share),
        floor=BATCH_CLOCK if batch else "",
        floor_rate=1 / (capacity * BATCH_SHARE),
        late_s=ttft_target_s - waited_s + grace_s,
    )


def fair_share(tenant: str, active: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The part of the fleet that `tenant` may have while the tenants in `active` (clock names,
    each with the seconds that it is ahead) are busy. A tenant without a weight weighs 1."""
    busy = {name.rpartition("/")[0] for name, ahead_s in active.items() if ahead_s > 0}
    busy = (busy - {""}) | {tenant}
    mine = weights.get(tenant, 1.0)
    return mine / sum(weights.get(name, 1.0) for name in busy)
