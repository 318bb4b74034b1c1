"""Tells whether constraints make sense, before anything is spent on their requests.

Asks a child process (`constraint_process`), one constraint after the other, so that one that
takes long holds up neither the event loop nor anyone's stream. Answers are remembered. The
child is started with the first constraint, and again after one has ended it.
"""

import asyncio
import contextlib
import hashlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict

from baton.errors import Exhausted, InternalError, InvalidRequest
from services.common.constraints import Constraint

START_S = 30.0
"""Longest wait for a child to be ready."""
CHECK_S = 5.0
"""Longest wait for an answer. A child's own limit, in processor time, is far below it: one that
is silent for so long got no processor, which says nothing of the constraint."""
QUEUE_S = 10.0
"""Longest wait for other constraints' checks."""
REMEMBERED = 4096
_MODULE = "services.router.constraint_process"
_RETRY_AFTER_S = 1.0
_TOO_MUCH = "takes too long, or too much memory, to compile"
_OVER_LIMIT = {-signal.SIGPROF, -signal.SIGABRT}
"""How children end that are over their limits."""
_ATTEMPTS = 2


class _Died(Exception):
    """The child has ended; `code` says how, None: it did not answer in time."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"the process that checks constraints ended with {code}")
        self.code = code


class ConstraintChecker:
    """Owns the child. Belongs to the event loop."""

    def __init__(self, check_s: float = CHECK_S) -> None:
        self._check_s = check_s
        self._lock = asyncio.Lock()
        self._child: Process | None = None
        self._asked = 0
        self._known: OrderedDict[bytes, str | None] = OrderedDict()
        """What is wrong, by a constraint's digest; the one asked for last is last."""

    async def check(self, path: str, constraint: Constraint) -> None:
        """Raises InvalidRequest, naming the field below `path`, where `constraint` makes no
        sense or takes too much to follow; Exhausted where that can't be told in time."""
        digest = _digest(constraint)
        if digest not in self._known:
            await self._learn(digest, constraint)
        self._known.move_to_end(digest)
        if (error := self._known[digest]) is not None:
            raise InvalidRequest(constraint.field(path), error)

    async def close(self) -> None:
        """Ends the child."""
        await self._end()

    async def _learn(self, digest: bytes, constraint: Constraint) -> None:
        try:
            async with asyncio.timeout(QUEUE_S):
                await self._lock.acquire()
        except TimeoutError:
            raise _busy("too many constraints wait to be checked") from None
        try:
            if digest not in self._known:
                self._known[digest] = await self._error(constraint)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        finally:
            self._lock.release()

    async def _error(self, constraint: Constraint) -> str | None:
        for _ in range(_ATTEMPTS):
            try:
                return await self._answer(constraint)
            except _Died as died:
                await self._end()
                if died.code is None:
                    raise _busy("the constraint could not be checked in time") from None
                if died.code in _OVER_LIMIT:
                    return _TOO_MUCH
        raise InternalError("the process that checks constraints ends again and again")

    async def _answer(self, constraint: Constraint) -> str | None:
        child = self._child or await self._start()
        assert child.stdin is not None
        self._asked += 1
        asked = {
            "id": self._asked,
            "kind": constraint.kind.value,
            "text": constraint.text,
            "texts": constraint.texts,
        }
        try:
            async with asyncio.timeout(self._check_s):
                with contextlib.suppress(ConnectionError):  # reading tells how it ended
                    child.stdin.write(json.dumps(asked).encode() + b"\n")
                    await child.stdin.drain()
                return await self._read(child, self._asked)
        except TimeoutError:
            raise _Died(None) from None

    async def _start(self) -> Process:
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _MODULE, stdin=PIPE, stdout=PIPE
        )
        try:
            async with asyncio.timeout(START_S):
                await self._read(child, 0)
        except TimeoutError:
            raise _Died(None) from None
        return child

    async def _read(self, child: Process, number: int) -> str | None:
        """The answer to a question; those to earlier ones, whose askers went away, are skipped."""
        assert child.stdout is not None
        while line := await child.stdout.readline():
            answer = json.loads(line)
            if answer["id"] == number:
                error: str | None = answer["error"]
                return error
        raise _Died(await child.wait())

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _busy(told: str) -> Exhausted:
    return Exhausted(told, reason="CONSTRAINTS_BUSY", retry_after=_RETRY_AFTER_S)


def _digest(constraint: Constraint) -> bytes:
    told = json.dumps([constraint.kind.value, constraint.text, constraint.texts])
    return hashlib.sha256(told.encode()).digest()
