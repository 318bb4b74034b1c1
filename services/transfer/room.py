"""Waiting for room: first come, first served in each segment, for a bounded time.

Who is first collects places as they come free, so that large requests are not starved by small
ones. Knows no clock but the event loop's.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton import errors
from baton.naming import Incarnation
from services.common.integrity import ensure
from services.common.transfer.place import Place, extent_bytes
from services.transfer.store import BlobStore


@dataclass(eq=False, slots=True)
class _Waiter:
    sizes: Sequence[int]
    done: asyncio.Future[None]
    places: list[Place] = field(default_factory=list)


class RoomQueue:
    """Those who wait for room in the store. Belongs to one event loop."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self.waited_s = 0.0
        """Time that reservers waited."""
        self._queues: dict[Incarnation, deque[_Waiter]] = {}
        store.on_room = self._serve

    async def reserve(
        self, incarnation: Incarnation, sizes: Sequence[int], wait_s: float
    ) -> list[Place]:
        """Places for `sizes` from the first on, as many as get room within `wait_s`.

        Raises LayoutMismatch where the incarnation is not attached (any more). When cancelled,
        nothing is taken.
        """
        self._store.expire()
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiter = _Waiter(self._possible(incarnation, sizes), loop.create_future())
        queue = self._queues.setdefault(incarnation, deque())
        queue.append(waiter)
        try:
            self._serve(incarnation)
            if wait_s > 0:
                async with asyncio.timeout(wait_s):
                    await asyncio.shield(waiter.done)
            elif waiter.done.done():
                waiter.done.result()
        except TimeoutError:
            pass
        except BaseException:
            waiter.done.cancel()  # so that what it gives back is not served to itself
            self._store.abandon(incarnation, waiter.places)
            raise
        finally:
            self.waited_s += loop.time() - began
            self._leave(incarnation, waiter)
        return waiter.places

    def fail(self, incarnation: Incarnation) -> None:
        """Ends all waiting for room in an incarnation's segment."""
        for waiter in self._queues.get(incarnation, ()):
            if not waiter.done.done():
                waiter.done.set_exception(
                    errors.LayoutMismatch("the attachment ended", reason="NOT_ATTACHED")
                )
                waiter.done.exception()  # marks it as seen: its reserver may be gone

    def _possible(self, incarnation: Incarnation, sizes: Sequence[int]) -> list[int]:
        """The sizes, from the first on, that an empty segment has room for together."""
        room = self._store.space(incarnation).allocator.size_bytes
        possible: list[int] = []
        for size in sizes:
            room -= extent_bytes(size)
            if room < 0:
                break
            possible.append(size)
        return possible

    def _serve(self, incarnation: Incarnation) -> None:
        for waiter in self._queues.get(incarnation, ()):
            if waiter.done.done():
                continue
            while len(waiter.places) < len(waiter.sizes):
                place = self._store.take(incarnation, waiter.sizes[len(waiter.places)])
                if place is None:
                    return
                waiter.places.append(place)
            waiter.done.set_result(None)

    def _leave(self, incarnation: Incarnation, waiter: _Waiter) -> None:
        queue = self._queues[incarnation]
        queue.remove(waiter)
        if not queue:
            del self._queues[incarnation]
        else:
            self._serve(incarnation)

    def check_integrity(self) -> None:
        """Raises BrokenInvariant unless who waits holds only reservations in force."""
        for incarnation, queue in self._queues.items():
            ensure(bool(queue), f"room: an empty queue of {incarnation} is left")
            for waiter in queue:
                if not waiter.done.done():
                    space = self._store.space(incarnation)
                    ensure(
                        all(space.is_reserved(place) for place in waiter.places),
                        f"room: a waiter of {incarnation} holds a place that is not reserved",
                    )
