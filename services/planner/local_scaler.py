"""`baton up` as an orchestrator: a file says how many workers there are to be, another what is.

The supervisor of `baton up` follows the one and writes the other (`baton.local`). What was decided
is kept beside them, in `decisions.log`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from baton.local.problem import Problem
from baton.local.replicas import Replicas, Wanted, exclusive
from baton.local.state import Phase, State
from baton.policy.fleet import Role
from services.planner.decision import Change
from services.planner.observation import Pool
from services.planner.scaler import ScaleConflict, ScaleDenied, ScaleError, ScaleUnavailable

MAX_LOG_BYTES = 1024 * 1024
"""Size at which the decisions begin a new file; the one before is kept."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class LocalScaler:
    """A Scaler. Its files are read and written on threads."""

    def __init__(self, replicas_file: Path, state_file: Path) -> None:
        self._replicas_file = replicas_file
        self._state_file = state_file
        self._decisions_file = replicas_file.with_name("decisions.log")

    async def pools(self) -> Mapping[Role, Pool]:
        return await asyncio.to_thread(in_scalers_words, self._read_pools)

    async def apply(self, change: Change) -> None:
        await asyncio.to_thread(in_scalers_words, lambda: self._write(change))

    async def tell(self, change: Change, *, dry_run: bool) -> None:
        try:
            await asyncio.to_thread(self._append, change, dry_run)
        except OSError as error:
            log.warning("cannot keep the decision in %s: %s", self._decisions_file, error.strerror)

    def _read_pools(self) -> dict[Role, Pool]:
        replicas = Replicas.read(self._replicas_file)
        serving = [one for one in self._state().processes if one.ready and not one.stopping]
        return {
            role: Pool(
                replicas=replicas.of(role).workers,
                ready=sum(one.kind.value == role.value for one in serving),
            )
            for role in Role
        }

    def _write(self, change: Change) -> None:
        self._state()
        with exclusive(self._replicas_file) as alone:
            if not alone:
                raise ScaleConflict(f"someone else changes {self._replicas_file} now")
            replicas = Replicas.read(self._replicas_file)
            found = replicas.of(change.role).workers
            if found != change.current:
                raise ScaleConflict(
                    f"{found} {change.role.value} workers are asked for by now, not "
                    f"{change.current}"
                )
            wanted = Wanted(change.wanted, tuple(map(str, change.victims)), change.why)
            replicas.changed(change.role, wanted).write(self._replicas_file)

    def _state(self) -> State:
        state = State.read_file(self._state_file)
        if state is None or not state.supervisor.alive():
            raise ScaleUnavailable(f"no `baton up` that lives keeps {self._state_file}")
        if state.phase is Phase.STOPPING:
            raise ScaleUnavailable("`baton up` is stopping")
        return state

    def _append(self, change: Change, dry_run: bool) -> None:
        path = self._decisions_file
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        victims = f" (stopping {', '.join(change.victims)})" if change.victims else ""
        with path.open("a") as file:
            file.write(
                f"{now} {change.role.value} {change.current} -> {change.wanted}{victims}, "
                f"{change.cause}: {change.why}{' [dry run]' if dry_run else ''}\n"
            )


def in_scalers_words(work: Callable[[], T]) -> T:
    """What `work` gives. Raises ScaleError in place of what it raises."""
    try:
        return work()
    except ScaleError:
        raise
    except PermissionError as error:
        raise ScaleDenied(f"cannot write {error.filename}: {error.strerror}") from error
    except Problem as problem:
        denied = isinstance(problem.__cause__, PermissionError)
        raise (ScaleDenied if denied else ScaleUnavailable)(str(problem)) from problem
    except OSError as error:
        raise ScaleUnavailable(f"{error.filename}: {error.strerror}") from error
