"""The latencies that a request is to hold: its own, or those of its class."""

from collections.abc import Mapping
from dataclasses import dataclass

from baton.policy.admission import default_ttft_s
from baton.policy.score import Order, Urgency, fair_share, order
from services.router.request import ClassTargets


@dataclass(frozen=True, slots=True)
class Targets:
    """What one request is to hold, in seconds."""

    ttft_s: float
    """From its arrival to its first token."""
    itl_s: float
    """Between tokens."""

    @classmethod
    def of(cls, urgency: Urgency, defaults: ClassTargets, idle_s: float) -> "Targets":
        """The targets of a request whose prompt takes `idle_s` on an idle worker."""
        ttft_s, itl_s = urgency.ttft_target_s, urgency.itl_target_s
        if ttft_s is None:
            of_class = defaults.batch_ttft_s if urgency.batch else defaults.interactive_ttft_s
            ttft_s = default_ttft_s(of_class, idle_s)
        if itl_s is None:
            itl_s = defaults.batch_itl_s if urgency.batch else defaults.interactive_itl_s
        return cls(ttft_s, itl_s)

    def order(
        self,
        urgency: Urgency,
        *,
        waited_s: float,
        started: bool,
        busy: Mapping[str, float],
        weights: Mapping[str, float],
        workers: int,
        grace_s: float,
    ) -> Order:
        """The request's place in the queue; `busy` are the clocks that are ahead, `weights` the
        tenants', and `workers` those that compute prompts."""
        return order(
            ttft_target_s=self.ttft_s,
            waited_s=waited_s,
            priority=urgency.priority,
            started=started,
            batch=urgency.batch,
            tenant=urgency.tenant,
            share=fair_share(urgency.tenant, busy, weights) if urgency.tenant else 1.0,
            workers=workers,
            grace_s=grace_s,
        )
