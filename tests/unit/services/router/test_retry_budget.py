"""One budget for the fleet, and the router's own while Redis is away."""

from baton.errors import Unavailable
from services.router.retry_budget import RetryBudget


class Store:
    def __init__(self, left=1):
        self.left = left
        self.available = True
        self.reserves = []

    async def spend_retry(self, reserve):
        self.reserves.append(reserve)
        if not self.available:
            raise Unavailable("away")
        self.left -= 1
        return self.left >= 0


async def test_the_fleets_budget_decides():
    store = Store(left=1)
    budget = RetryBudget(store, ratio=0.5, reserve=10.0)
    assert await budget.spend()
    assert not await budget.spend()
    assert store.reserves == [10.0, 10.0]


async def test_its_own_while_redis_is_away():
    store = Store(left=0)
    store.available = False
    budget = RetryBudget(store, ratio=0.5, reserve=2.0)
    assert [await budget.spend() for _ in range(3)] == [True, True, False]
    budget.earn()
    assert not await budget.spend()
    budget.earn()
    assert await budget.spend()
    for _ in range(100):
        budget.earn()
    assert [await budget.spend() for _ in range(3)] == [True, True, False]
