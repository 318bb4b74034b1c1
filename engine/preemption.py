"""Who leaves when running sequences outgrow the room that there is.

Knows sequences and the cache's promises; not how a sequence leaves.
"""

from collections.abc import Callable, Collection, Iterable

from engine.kv.cache import KVCache
from engine.sequence import LiveSequence

Preempt = Callable[[LiveSequence], None]
"""Lets a started sequence go; what it was promised is free then."""


def make_room(started: Collection[LiveSequence], cache: KVCache, preempt: Preempt) -> None:
    """Raise the promises of those of `started` (in that order) that outgrow theirs, and preempt
    others, or the sequence itself, where that takes it.

    One always stays, though it may lack room as long as others are admitted and not started.
    """
    if not any(one.outgrows for one in started):
        return
    left = {one.request.request_id: one for one in started}
    for request_id, grower in list(left.items()):
        while request_id in left and grower.outgrows:
            if cache.can_grow(grower.kv):
                cache.grow(grower.kv)
            elif len(left) > 1:
                preempt(left.pop(_victim(left.values())))
            else:
                break


def _victim(started: Iterable[LiveSequence]) -> str:
    """The id of the least important one, of these the last started: it has the least KV as a
    rule. One that is handed over anyway has room for that, so it leaves only where no other
    can."""

    def standing(one: LiveSequence) -> tuple[bool, int]:
        return one.request.hand_over_after is not None, one.request.priority

    return min(reversed(list(started)), key=standing).request.request_id
