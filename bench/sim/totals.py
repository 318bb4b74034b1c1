"""Counts what clients ask of a simulated fleet, as routers do for the planner."""

from baton.policy.cost import pairs
from bench.sim.fleet import Dispatcher
from bench.sim.life import Life
from bench.sim.worker import SimWorker
from services.common.fleet.demand import DemandTotals


class Counted:
    """A dispatcher that counts: a request when it comes, what it took when it has ended."""

    def __init__(self, inner: Dispatcher) -> None:
        self.totals = DemandTotals()
        self._inner = inner

    def arrive(self, life: Life) -> None:
        self._inner.arrive(life)
        self.totals += DemandTotals(
            requests=1, prompt_tokens=life.prompt_tokens, refused=life.refused
        )

    def go_on(self, life: Life) -> None:
        self._inner.go_on(life)

    def admitted(self, worker: SimWorker, life: Life) -> None:
        self._inner.admitted(worker, life)

    def changed(self, worker: SimWorker) -> None:
        self._inner.changed(worker)

    def finished(self, life: Life) -> None:
        self._inner.finished(life)
        self.totals += of(life)


def of(life: Life) -> DemandTotals:
    """What a request took that has ended, and whether it held its targets."""
    several = life.output_tokens >= 2
    return work(life.prompt_tokens, life.cached_tokens, life.output_tokens) + DemandTotals(
        ttft_judged=1,
        ttft_held=life.holds_ttft(),
        itl_judged=several,
        itl_held=several and life.holds_itl(),
    )


def work(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> DemandTotals:
    """What a request takes."""
    new = prompt_tokens - cached_tokens
    return DemandTotals(
        computed_requests=1,
        new_tokens=new,
        new_pairs=pairs(new, cached_tokens),
        sequences=1,
        output_tokens=output_tokens,
        output_context=pairs(output_tokens, prompt_tokens),
    )
