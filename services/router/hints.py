"""What the router has heard of caches."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from baton.naming import WorkerId


class CachedPrefixes(Protocol):
    """Tells where a prompt's beginning is thought to be cached. Hints: any may be out of date."""

    async def cached(self, tokens: Sequence[int], salt: bytes, /) -> Mapping[WorkerId, int]:
        """By worker, how many of `tokens`, from the first on, it need not compute, where names
        are salted with `salt`. Workers that have none are left out. Raises nothing."""
