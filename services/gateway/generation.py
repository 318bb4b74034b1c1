"""One generation as a gateway sees it: a stream that goes on when its router dies.

Another router takes over where the stream was, and the client notices nothing. Its tenant's limits
hold there too, and a dead router's streams count for some seconds more: that is waited for.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from baton import errors, events
from baton.client import AsyncClient, AsyncStream, GenerateOptions, Prompt

_RESUMES = 2
_PAUSE_S = 0.1
_ELSEWHERE = frozenset({"UNREACHABLE", "DRAINING", "CANCELLED"})
"""Reasons for which another router may do what this one can't."""
_LATER = frozenset({"TOO_MANY_STREAMS", "RATE_LIMITED"})
"""Reasons for which a router that is to go on with a stream may do so later."""
PATIENCE_S = 6.0
"""Longest time that a router is asked again for these; a dead one's streams are free after 3 s."""
_MAX_PAUSE_S = 0.5


class Generation:
    """The events of one generation. Iterate `stream` once, in one task."""

    def __init__(
        self,
        client: AsyncClient,
        prompt: Prompt,
        options: GenerateOptions,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._client = client
        self._prompt = prompt
        self._options = options
        self._stream: AsyncStream | None = None

    @property
    def explanation(self) -> str:
        """What became of it, in words; empty before its end, or where its router told none."""
        return "" if self._stream is None else self._stream.explanation

    async def stream(self) -> AsyncGenerator[events.Event, None]:
        """Yields them. Closing it ends the generation."""
        resumes, give_up_s = 0, 0.0
        clock = asyncio.get_running_loop().time
        options: dict[str, Any] = dict(self._options)
        prompted = False
        while True:
            stream = self._client.generate(self._prompt, **options)
            self._stream = stream
            async with stream:
                try:
                    async for event in stream:
                        if isinstance(event, events.PromptEcho):
                            if prompted:
                                continue
                            prompted = True
                        yield event
                    return
                except (errors.Unavailable, errors.Cancelled) as error:
                    # Nobody here cancels a call that is iterated: its router stopped.
                    if error.reason not in _ELSEWHERE or resumes == _RESUMES:
                        raise
                    resumes, give_up_s = resumes + 1, clock() + self._patience_s
                    pause_s = _PAUSE_S
                except errors.Exhausted as error:
                    if error.reason not in _LATER or clock() >= give_up_s:
                        raise
                    pause_s = min(error.retry_after or _PAUSE_S, _MAX_PAUSE_S)
            if (point := stream.resume_point()) is not None:
                options["resume_from"] = point
            await asyncio.sleep(pause_s)

    async def complete(self) -> events.Completion:
        """All of it."""
        collector = events.Collector()
        async for event in self.stream():
            collector.add(event)
        return collector.result()
