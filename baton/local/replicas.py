"""How many workers of each role there are to be: the file by which a planner tells a supervisor.

Declarative: the supervisor starts and stops workers until there are so many. A person may write
it too:

    {"prefill": {"workers": 1, "victims": [], "why": ""},
     "decode": {"workers": 2, "victims": ["decode-0"], "why": "fewer have been enough"}}
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from baton.local.problem import Problem
from baton.policy.fleet import Role

_KEYS = {"workers", "victims", "why"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The workers of one role that there are to be."""

    workers: int
    victims: tuple[str, ...] = ()
    """Names of workers to stop first where there are more."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Replicas:
    """The workers that there are to be."""

    prefill: Wanted
    decode: Wanted

    def of(self, role: Role) -> Wanted:
        return self.prefill if role is Role.PREFILL else self.decode

    def changed(self, role: Role, wanted: Wanted) -> "Replicas":
        """The same, with another number of one role."""
        if role is Role.PREFILL:
            return Replicas(wanted, self.decode)
        return Replicas(self.prefill, wanted)

    def write(self, path: Path) -> None:
        """Puts it into the file, at once and whole."""
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(self), indent=2))
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> "Replicas":
        """What the file says. Raises Problem where there is none that can be understood."""
        try:
            found = json.loads(path.read_text())
        except OSError as error:
            raise Problem(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
            raise Problem(f"{path} is not JSON: {error}") from error
        try:
            roles = _object(found, "it", {str(role.value) for role in Role})
            return cls(*(_wanted(roles.get(role.value), role.value) for role in Role))
        except ValueError as error:
            raise Problem(f"{path} cannot be understood: {error}") from None


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Keeps others that ask too from changing the file; False where one of them does now.

    The lock is the directory's: the file itself is another one after every change.
    """
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(directory)


def _wanted(found: object, role: str) -> Wanted:
    given = _object(found, role, _KEYS)
    workers, victims, why = given.get("workers"), given.get("victims", []), given.get("why", "")
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ValueError(f"{role} has workers {workers!r}, not a number from 1 on")
    if not isinstance(victims, list) or not all(isinstance(name, str) for name in victims):
        raise ValueError(f"{role} has victims {victims!r}, not a list of names")
    if not isinstance(why, str):
        raise ValueError(f"{role} has why {why!r}, not a text")
    "".join((*victims, why)).encode()  # half a surrogate pair can't be printed
    return Wanted(workers, tuple(victims), why)


def _object(found: object, name: str, keys: set[str]) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{name} is {found!r}, not an object with {', '.join(sorted(keys))}")
    if unknown := found.keys() - keys:
        raise ValueError(f"{name} has {min(unknown)}, which nobody knows")
    return found
