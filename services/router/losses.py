"""Which workers are gone for good, for those who have calls at them.

A worker that hangs closes no connection: that it tells the fleet nothing any more is the only
sign. Knows no calls; what a loss means for one is its caller's matter.
"""

import asyncio
from collections.abc import Mapping
from weakref import WeakValueDictionary

from baton.naming import Incarnation, WorkerId
from baton.policy.fleet import Worker

LOST_S = 2.0
"""How long a worker is missing from the fleet until it counts as lost."""

_Key = tuple[WorkerId, Incarnation]


class Losses:
    """Events of worker incarnations, each set once its worker is known to be gone.

    An event is shared by all who ask for it, and forgotten when nobody holds it, or when a
    worker that was taken for gone is back. Not thread-safe; belongs to one event loop.
    """

    def __init__(self) -> None:
        self._events: WeakValueDictionary[_Key, asyncio.Event] = WeakValueDictionary()
        self._missing: dict[_Key, float] = {}
        """Since when; only for those who have an event."""

    def __len__(self) -> int:
        return len(self._events)

    def event(self, worker: Worker, current: Worker | None) -> asyncio.Event:
        """The event of `worker`. `current` is who has its id now; None: nobody."""
        key = (worker.worker_id, worker.incarnation)
        event = self._events.get(key)
        if event is None:
            event = self._events[key] = asyncio.Event()
        if current is not None and current.incarnation != worker.incarnation:
            event.set()
        return event

    def update(self, workers: Mapping[WorkerId, Worker], now: float) -> None:
        """Takes in who is in the fleet at `now`, in seconds of any steady clock."""
        events = dict(self._events)
        missing: dict[_Key, float] = {}
        for key, event in events.items():
            current = workers.get(key[0])
            if current is None:
                missing[key] = self._missing.get(key, now)
                if now - missing[key] >= LOST_S:
                    event.set()
            elif current.incarnation != key[1]:
                event.set()
            elif event.is_set():  # it only hung: a new event for who asks from now on
                del self._events[key]
        self._missing = missing

    def pause(self) -> None:
        """Nothing is known of the fleet at this moment: who is missing may be there."""
        self._missing.clear()
