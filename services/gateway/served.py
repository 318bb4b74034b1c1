"""The model that is served, as a router told it lately."""

import time
from collections.abc import Callable, Mapping

from baton import errors, events
from baton.client import AsyncClient
from baton.keys import digest_of

_FRESH_S = 5.0
_MAX_CALLERS = 256
Clock = Callable[[], float]


class Served:
    """Asks a router, at most once in some seconds for each key: who has none is not told."""

    def __init__(
        self, client: AsyncClient, patience_s: float, clock: Clock = time.monotonic
    ) -> None:
        self._client = client
        self._patience_s = patience_s
        self._clock = clock
        self._told: dict[str, tuple[float, events.Model]] = {}
        """When each caller was told what, by its key's hash; the one told last is last."""

    async def model(self, metadata: Mapping[str, str]) -> events.Model:
        """The model. Raises what the router answers."""
        caller = digest_of(metadata.get("authorization", ""))
        now = self._clock()
        if caller in self._told and now - self._told[caller][0] <= _FRESH_S:
            return self._told[caller][1]
        known = await self._client.model(timeout=self._patience_s, metadata=metadata)
        self._told.pop(caller, None)
        self._told[caller] = now, known
        while len(self._told) > _MAX_CALLERS:
            del self._told[next(iter(self._told))]
        return known

    async def named(self, name: str | None, metadata: Mapping[str, str]) -> events.Model:
        """The model of that name; None: the one that is served. Raises NotFound."""
        model = await self.model(metadata)
        if name not in (None, "", model.name):
            raise errors.NotFound(
                f"the model {name!r:.80} does not exist; {model.name!r} is served",
                reason="UNKNOWN_MODEL",
                field="model",
            )
        return model
