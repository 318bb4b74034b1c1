"""Several streams made one. Knows nothing of what they carry."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T
    taken: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Runs all streams at the same time and yields their items as they come.

    Each stream's items stay in order, none runs more than an item ahead of the reader, and
    none is held up by a faster one. The first that raises ends the others, and its error is
    raised here. However this generator ends, the streams have been closed by then.
    """
    ready: asyncio.Queue[_Item[T] | _End] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(stream, ready)) for stream in streams]
    running = len(pumps)
    try:
        while running:
            match await ready.get():
                case _Item(value, taken):
                    taken.set()
                    yield value
                case _End(Exception() as error):
                    raise error
                case _End():
                    running -= 1
    finally:
        for pump in pumps:
            pump.cancel()
        if pumps:
            await asyncio.wait(pumps)


async def _pump(stream: AsyncGenerator[T, None], ready: "asyncio.Queue[_Item[T] | _End]") -> None:
    error: Exception | None = None
    try:
        async with aclosing(stream):
            async for value in stream:
                item = _Item(value)
                ready.put_nowait(item)
                await item.taken.wait()
    except Exception as caught:  # noqa: BLE001 - raised again where the streams meet
        error = caught
    ready.put_nowait(_End(error))
