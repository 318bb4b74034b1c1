"""The model that is served, as a router told it lately."""

import time
from collections.abc import Callable, Mapping

from baton import errors, events
from baton.client import AsyncClient

_FRESH_S = 5.0
Clock = Callable[[], float]


class Served:
    """Asks a router, at most once in some seconds."""

    def __init__(
        self, client: AsyncClient, patience_s: float, clock: Clock = time.monotonic
    ) -> None:
        self._client = client
        self._patience_s = patience_s
        self._clock = clock
        self._known: events.Model | None = None
        self._asked = 0.0

    async def model(self, metadata: Mapping[str, str]) -> events.Model:
        """The model. Raises what the router answers."""
        now = self._clock()
        if self._known is None or now - self._asked > _FRESH_S:
            known = await self._client.model(timeout=self._patience_s, metadata=metadata)
            self._known, self._asked = known, now
        return self._known

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
