"""Awaiting an operation to its end, whatever happens to whoever awaits it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def settled(operation: Coroutine[Any, Any, T]) -> T:
    """The operation's result. A cancel takes effect only when the operation has ended: only
    then is it known what there is to undo. So it must be one that ends within a deadline."""
    task = asyncio.ensure_future(operation)
    cancel: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancel = error
    if cancel is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # seen: the cancel is what counts
    raise cancel
