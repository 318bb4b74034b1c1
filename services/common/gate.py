"""What is in progress in a process: how much, and whether more is let in.

Knows nothing of what it is, and refuses nothing by itself.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Counts what is inside, and is open until it is closed. For one event loop."""

    def __init__(self) -> None:
        self._inside = 0
        self._open = True
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def inside(self) -> int:
        """How many are in progress."""
        return self._inside

    @property
    def open(self) -> bool:
        """Whether more are to be let in: who enters asks first."""
        return self._open

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more is in progress inside the block."""
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def close(self, grace_s: float) -> bool:
        """Lets no more in, and waits for those inside. False where some still are after
        `grace_s` seconds; closing again is possible."""
        self._open = False
        try:
            async with asyncio.timeout(grace_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
