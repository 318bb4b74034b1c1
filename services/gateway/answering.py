"""What both kinds of generation have in common: how events become an answer or a stream."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from baton import errors, events
from services.gateway.errors import Names, Problem, problem_of
from services.gateway.gone import ClientGone
from services.gateway.sse import Chunks, event

log = logging.getLogger("services.gateway")
_MAX_HEADER = 2000


class Refused(Exception):
    """A router's error, in the terms of the body that caused it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


async def in_terms_of(
    stream: AsyncGenerator[events.Event, None], names: Names
) -> AsyncGenerator[events.Event, None]:
    """The stream, whose errors name fields as the body does."""
    async with aclosing(stream):
        try:
            async for one in stream:
                yield one
        except errors.BatonError as error:
            raise Refused(problem_of(error, names)) from error


async def guarded(chunks: Chunks) -> Chunks:
    """The chunks; an error after the first one becomes the last one."""
    begun = False
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield chunk
                begun = True
        except ClientGone:
            raise
        except Exception as error:
            if not begun:
                raise
            yield event(_told(error).body())


def _told(error: Exception) -> Problem:
    if isinstance(error, Refused):
        return error.problem
    log.error("a stream failed", exc_info=error)
    return problem_of(errors.InternalError(f"{type(error).__name__}"))


def explained(explanations: Sequence[str]) -> dict[str, str]:
    """The header that explains an answer, where routers told what became of it."""
    text = " | ".join(filter(None, explanations))
    safe = "".join(one if " " <= one <= "~" else "?" for one in text)[:_MAX_HEADER]
    return {"x-baton-explanation": safe} if safe else {}
