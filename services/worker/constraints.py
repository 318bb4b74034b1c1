"""Holds outputs to languages: makes the masks of a worker's sequences.

A mask's state is a function of the constraint and the tokens emitted: who goes on elsewhere,
or again, replays them. The vocabulary is read while the engine loads, since that holds the
interpreter lock; grammars are compiled, and masks computed, on threads of their own while the
engine computes. Knows no wire and no role.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from baton.errors import InternalError, InvalidRequest, Unavailable
from engine.errors import MaskError
from engine.masks import LogitMask
from engine.types import SequenceOutput
from services.common.constraints import Constraint
from services.common.text.errors import TextModelError
from services.common.text.vocabulary import Vocabulary

if TYPE_CHECKING:  # loaded where a constraint is: see `_read`
    from llguidance import LLMatcher

    from services.common.constraints.grammars import TokenTable

Array = NDArray[np.int32]

COMPILE_S = 10.0
"""Longest wait for a grammar, the vocabulary's reading included where that is not done yet."""
MASK_S = 1.0
"""Longest wait for one mask, in which the batch waits too; it takes a millisecond or two."""
KEPT_GRAMMARS = 32
_THREADS = 4
"""Some may be kept busy by what nobody waits for any more."""


class Constraints:
    """Makes masks for the model at `path`. Belongs to the event loop."""

    def __init__(self, path: Path, kept: int = KEPT_GRAMMARS) -> None:
        self._path = path
        self._kept = kept
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="constraints")
        self._table: Future[TokenTable] | None = None
        self._matchers: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        """At the beginning of a text; the one used last is last."""

    def start(self) -> None:
        """Begins to read the vocabulary, if that was not begun."""
        if self._table is None:
            self._table = self._pool.submit(_read, self._path)

    def close(self) -> None:
        """Ends the threads after what they compute now; masks fail from then on."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def mask_of(
        self,
        path: str,
        constraint: Constraint | None,
        emitted: Sequence[int] = (),
        emitted_path: str = "",
    ) -> LogitMask | None:
        """A mask after `emitted`; None without a constraint. Raises InvalidRequest naming the
        constraint's field below `path`, or `emitted_path` where those tokens can't be."""
        if constraint is None:
            return None
        self.start()
        field = constraint.field(path)
        try:
            async with asyncio.timeout(COMPILE_S):
                matcher = await self._matcher(field, constraint)
                table = await self._read_table(field)
                replaying = self._pool.submit(_replayed, matcher, list(emitted))
                after, taken = await asyncio.wrap_future(replaying)
        except TimeoutError:
            raise InvalidRequest(field, f"takes more than {COMPILE_S:g} s to compile") from None
        if taken < len(emitted):
            raise InvalidRequest(f"{emitted_path}[{taken}]", f"can't follow by {field}")
        return MatcherMask(after, table, self._pool)

    async def _read_table(self, field: str) -> "TokenTable":
        assert self._table is not None
        try:
            return await asyncio.shield(asyncio.wrap_future(self._table))
        except TextModelError as error:
            told = f"this model's outputs can't be held to it: {error}"
            raise InvalidRequest(field, told) from error

    async def _matcher(self, field: str, constraint: Constraint) -> "LLMatcher":
        known = self._matchers.get(constraint)
        if known is None:
            table = await self._read_table(field)
            compiled = await asyncio.wrap_future(self._pool.submit(_compiled, table, constraint))
            if isinstance(compiled, str):
                raise InvalidRequest(field, compiled)
            known = self._matchers[constraint] = compiled
            while len(self._matchers) > self._kept:
                self._matchers.popitem(last=False)
        self._matchers.move_to_end(constraint)
        return known


class MatcherMask:
    """A mask that a matcher makes. What may follow is computed on another thread as soon as it
    can be, and waited for in `fill`: the matcher is nobody else's until then."""

    def __init__(self, matcher: "LLMatcher", table: "TokenTable", pool: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._table = table
        self._pool = pool
        self._filled: Future[Array] | None = None
        self._settle()

    @property
    def may_end(self) -> bool:
        """As `LogitMask` says."""
        return self._may_end

    @property
    def must_end(self) -> bool:
        """As `LogitMask` says."""
        return self._must_end

    def fill(self, bits: Tensor) -> None:
        """As `LogitMask` says."""
        found = self._computed()
        target = bits.numpy()
        count = min(len(found), len(target))
        target[:count] = found[:count]
        target[count:] = 0

    def accept(self, token: int) -> None:
        """As `LogitMask` says."""
        self._computed()
        self._filled = None
        self._matcher.consume_token(token)
        self._settle()

    def fork(self) -> "MatcherMask":
        """As `LogitMask` says."""
        self._computed()
        return MatcherMask(self._matcher.deep_copy(), self._table, self._pool)

    def _settle(self) -> None:
        """The text has grown: sees whether it may go on, and begins to compute how."""
        matcher = self._matcher
        self._may_end = matcher.is_accepting()
        self._must_end = self._may_end and matcher.is_stopped()
        if matcher.is_error():
            raise MaskError(_told(matcher))
        if not self._must_end:
            self._filled = self._pool.submit(_mask, matcher, self._table)

    def _computed(self) -> Array:
        """What may follow; an empty array where nothing can."""
        if self._filled is None:
            return np.empty(0, np.int32)
        try:
            return self._filled.result(MASK_S)
        except TimeoutError:
            told = f"what may follow took more than {MASK_S:g} s to compute"
            raise TimeoutError(told) from None


def raise_failure(output: SequenceOutput) -> None:
    """Raises what the sequence's mask failed with, if it did: InvalidRequest where the
    constraint is at fault, Unavailable where the worker was too slow, which another may not be."""
    error = output.failure
    if isinstance(error, TimeoutError):
        raise Unavailable(str(error), reason="MASK_LATE") from error
    if isinstance(error, MaskError):
        raise InvalidRequest("sampling.constraint", str(error)) from error
    if error is not None:
        raise InternalError(f"the constraint failed: {type(error).__name__}: {error}") from error


def _read(path: Path) -> "TokenTable":
    from services.common.constraints.grammars import TokenTable

    vocabulary = Vocabulary.load(path)
    return TokenTable(vocabulary.token_bytes, vocabulary.special)


def _compiled(table: "TokenTable", constraint: Constraint) -> "LLMatcher | str":
    """A matcher, or what is wrong with the constraint."""
    from services.common.constraints.grammars import GrammarError

    try:
        return table.matcher(constraint)
    except GrammarError as error:
        return str(error)


def _replayed(matcher: "LLMatcher", emitted: list[int]) -> "tuple[LLMatcher, int]":
    """A matcher after `emitted`, and how many of those could be taken."""
    after = matcher.deep_copy()
    return after, after.try_consume_tokens(emitted) if emitted else 0


def _mask(matcher: "LLMatcher", table: "TokenTable") -> Array:
    """The tokens that may follow: bit t % 32 of element t // 32."""
    from services.common.constraints.grammars import GrammarError

    try:
        return np.frombuffer(table.allowed(matcher), np.int32)
    except GrammarError as error:
        raise MaskError(str(error)) from None


def _told(matcher: "LLMatcher") -> str:
    from services.common.constraints.grammars import shown

    return shown(matcher.get_error())
